"""Adds config/ and the commit to a wheel, and the gpufeed.native extension where it can be compiled.

It can be with `pip install --no-build-isolation .` in an environment that has torch, setuptools and ninja.
pip's isolated build has no torch: the wheel is then pure Python, and the extension compiled when first used.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Distribution, __version__, setup
from setuptools.command.build_py import build_py

NEEDED = 77  # the first setuptools that reads the licence field of pyproject.toml
# pip downloads a new setuptools for its build; python setup.py install uses the installed one
if int(__version__.partition(".")[0]) < NEEDED:
    sys.exit(
        f"found: setuptools {__version__}\nexpected: setuptools {NEEDED} or newer\n"
        "what to do: run `python -m pip install .`, which downloads its own; or upgrade with "
        f"`python -m pip install --upgrade 'setuptools>={NEEDED}'` and run this command again"
    )

HERE = Path(__file__).parent
WITHOUT = "gpufeed is installed without its gpufeed.native extension, which is compiled at its first use: {}."


class BuildWithExtension(build_py):
    """build_py, config/ as gpufeed/conf, the commit if it is known, and the compiled extension.

    An editable install reads config/ itself, and compiles nothing.
    """

    def run(self):
        super().run()
        if self.editable_mode:
            return
        conf = Path(self.build_lib) / "gpufeed/conf"
        shutil.copytree(HERE / "config", conf, ignore=shutil.ignore_patterns("*.md"), dirs_exist_ok=True)
        sys.path.insert(0, str(HERE))
        from gpufeed.system.commit import checkout, write

        commit, dirty = checkout(HERE)
        if commit is not None:
            write(Path(self.build_lib), commit, dirty, parts=("gpufeed",))
        if find_spec("torch") is None:
            print(WITHOUT.format("this build has no torch (pip install --no-build-isolation . has)"))
            return
        from gpufeed.native.build import build_or_say
        from gpufeed.native.library import about_path

        built = build_or_say(Path(self.build_lib) / "gpufeed/native")
        if built.about.library is None:  # what stands in for it would keep the first use from compiling
            built.library.unlink()
            about_path(built.library).unlink()
            print(WITHOUT.format(built.about.sentence))
        else:
            print(f"gpufeed is installed with {built.library.name}: {built.about}")


class PlatformDistribution(Distribution):
    """A wheel with a library in it is for one platform; one without is for all."""

    def has_ext_modules(self):
        return find_spec("torch") is not None


setup(cmdclass={"build_py": BuildWithExtension}, distclass=PlatformDistribution)

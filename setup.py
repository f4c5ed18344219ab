"""Adds the workflow and the commit to a wheel, and the gpufeed.native extension where it can be compiled.

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
# what a run reads of the repository, in a wheel as gpufeed/repository
PARTS = ("config", "envs", "profiles", "rules", "slurm", "workflow")
WITHOUT = "gpufeed is installed without its gpufeed.native extension, which is compiled at its first use: {}."


class BuildWithExtension(build_py):
    """build_py, the workflow, the commit if it is known, and the compiled extension.

    An editable install reads the repository itself, and compiles nothing.
    """

    def run(self):
        super().run()
        if self.editable_mode:
            return
        repository = Path(self.build_lib) / "gpufeed/repository"
        for part in PARTS:
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(HERE / part, repository / part, ignore=ignored, dirs_exist_ok=True)
        shutil.copy(HERE / "Snakefile", repository)
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

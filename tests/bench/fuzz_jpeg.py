"""Damaged JPEGs of at most 4 kB through the CPU form under AddressSanitizer.

python tests/bench/fuzz_jpeg.py COUNT [SEED]

Prints how many files had which fault (gpufeed/native/jpeg_op.py, FAULTS), or the first finding.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/fixtures"))

from jpeg_batch_fixtures import SOURCES, compiler, mixture  # noqa: E402

MOST = 4096  # bytes of a file


def main(count: str, seed: str = "0") -> int:
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, data in enumerate(file for file in mixture() if b"\xff\xda" in file[:MOST]):
            if len(data) <= MOST:
                paths.append(Path(folder, f"{number}.jpg"))
                paths[-1].write_bytes(data)
        program, source = Path(folder, "fuzz"), ROOT / "tests/fixtures/jpeg_fuzz.cpp"
        checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        command = [compiler(), "-O1", "-g", "-std=c++17", *checks, f"-I{SOURCES}", source, "-o", program]
        subprocess.run(command, check=True)
        return subprocess.run([program, count, seed, *paths], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

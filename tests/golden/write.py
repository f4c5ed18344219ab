"""Write the golden files again, on purpose: python -m tests.golden.write. Read the difference."""

import tempfile
from pathlib import Path

from tests.golden import made


def main() -> None:
    made.GOLDEN.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        checkout = made.Checkout(scratch)
        found = made.ids() | made.tables(scratch) | made.page(scratch) | checkout.lines()
        for config in made.CONFIGS:
            found |= checkout.plan(config)
    for path in made.GOLDEN.iterdir():
        path.unlink()
    for name, text in found.items():
        (made.GOLDEN / name).write_text(text)


if __name__ == "__main__":
    main()

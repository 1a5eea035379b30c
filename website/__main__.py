"""`python -m website [FOLDER]`: draw the pictures, write the reference, build the site."""

import sys
from pathlib import Path

from website import configuration
from website.building import build
from website.pictures import draw_all

ROOT = Path(__file__).parent.parent

draw_all(ROOT / "docs/pictures")
configuration.write(ROOT)
build(ROOT, Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/site")

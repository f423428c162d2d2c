"""Draws docs/report.png, the report of a comparison in both themes and on a phone: python docs/draw_report.py FOLDER

FOLDER is that of the comparison, as in runs/compare/digits. Chromium takes the photographs.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WHERE = Path(__file__).with_name("report.png")
HEIGHT, GAP = 1000, 24
VIEWS = ((900, "light"), (900, "dark"), (375, "light"))  # width of the screen, theme


def main() -> None:
    page = Path(sys.argv[1]) / "report.html"
    pictures = photographs(page)
    whole = Image.new("RGBA", (sum(p.width for p in pictures) + GAP * (len(pictures) - 1), HEIGHT), (0, 0, 0, 0))
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, 0))
        left += picture.width + GAP
    whole.quantize(192).save(WHERE, optimize=True)
    print(WHERE, f"{WHERE.stat().st_size / 1000:.0f} kB")


def photographs(page: Path) -> list[Image.Image]:
    """The top of the page on every screen."""
    found = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width, theme in VIEWS:
            shown = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=theme)
            shown.goto(page.resolve().as_uri())
            found.append(Image.open(io.BytesIO(shown.screenshot())))
        browser.close()
    return found


if __name__ == "__main__":
    main()

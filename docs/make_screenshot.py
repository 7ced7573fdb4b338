"""Re-makes docs/images/explorer.png: the explorer with one client chosen.

python docs/make_screenshot.py      needs Chromium and mppfl[explore,browser-tests]
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # what drives the browser lives with the tests

from tests.explorer.browser import chromium, serving, visit

from mppfl.cli import open_site
from mppfl.explorer import Choices, ViewState, to_link
from mppfl.spec import GameSpec

SHOWN = Choices(
    GameSpec(family="watts_strogatz", num_clients=200, seed=3),
    ViewState(colour="external_risk", client="82", other="83", round_shown=12),
)
PICTURE = Path(__file__).parent / "images" / "explorer.png"


def main() -> None:
    site = open_site(GameSpec())
    with serving(site) as address, chromium() as browser:
        page = visit(browser, address, width=1400, height=950, color_scheme="light")
        page.open(to_link(SHOWN))
        page.page.mouse.move(0, 0)
        page.page.screenshot(path=PICTURE)
        page.close()
    print(PICTURE)


if __name__ == "__main__":
    main()

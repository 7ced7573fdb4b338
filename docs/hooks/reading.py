"""Small repairs of the theme for readers who use a keyboard or a screen reader."""

SEARCH = 'data-md-component="search" role="dialog"'


def on_page_content(content: str, **_: object) -> str:
    """A wide table scrolls within a box that the keyboard can reach; the theme's own box cannot be reached."""
    return content.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")


def on_post_page(output: str, **_: object) -> str:
    """The search has a name."""
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"')

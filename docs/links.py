"""Follow every link within a built site: ``python docs/links.py FOLDER`` fails if one is dead."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the places in it that may be linked to."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.places = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        """Note the places and the links of one tag."""
        found = dict(attributes)
        self.places.add(found.get("id"))
        self.links |= {found[key] for key in ("href", "src") if found.get(key)}


def dead(site: Path) -> list[str]:
    """Return the links of a site that lead nowhere, each behind the page that has it."""
    pages = {
        path: Page(path.read_text()) for path in site.rglob("*.html") if "_static" not in path.parts
    }
    found = []
    for path, page in sorted(pages.items()):
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            here = target in pages and parts.fragment
            if not target.is_file() or (
                here and unquote(parts.fragment) not in pages[target].places
            ):
                found.append(f"{path.relative_to(site)}: {link}")
    return found


if __name__ == "__main__":
    lost = dead(Path(sys.argv[1]).resolve())
    sys.exit("\n".join(["dead links:", *lost]) if lost else 0)

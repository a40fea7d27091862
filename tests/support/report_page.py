"""A page as a browser would read it: its texts, its scripts, and what it loads."""

from __future__ import annotations

import base64
import gzip
from html.parser import HTMLParser


class Page(HTMLParser):
    """What a browser would make of a page: elements with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.blocks: dict[str, str] = {}
        self.styles: list[str] = []
        self.words: list[str] = []
        self._within: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag in ("script", "style"):
            self._within = attributes.get("id") or f"{tag}{len(self.blocks)}"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._within = None

    def handle_data(self, data: str) -> None:
        if self._within is None:
            self.words.append(data)
        else:
            self.blocks[self._within] = self.blocks.get(self._within, "") + data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def unpacked(self, name: str) -> str:
        return gzip.decompress(base64.b64decode(self.blocks[name])).decode()

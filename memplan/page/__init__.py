"""One page that shows an answer: a file by itself, which asks the network for nothing.

``page`` makes it of what ``--json`` prints; its script draws with plain SVG, since two pictures made of rectangles are
shorter than a chart library's licence. ``document`` is its HTML, ``packing`` how an answer is kept small in it,
``dressing`` what it is told beside the answer, ``static`` the script and the looks. A server or a notebook that has the
script draws anew with ``memplan.draw(element, kind, payload)``."""

from memplan.page.document import framed, page, shown
from memplan.page.dressing import dressed

__all__ = ["dressed", "framed", "page", "shown"]

"""Draw the pictures of the documentation."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FONT = "font-family='system-ui, sans-serif' font-size='14'"
INK, PAPER, SHADE, ACCENT = "#333333", "#ffffff", "#eef3f8", "#2f6f9f"
LINE_HEIGHT = 18
LETTER_WIDTH = 7.4
"""Width of a letter in a box, in the widest of the usual fonts."""


@dataclass
class Picture:
    """Boxes and arrows on a white background."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, *lines: str, fill: str = PAPER) -> None:
        """Draw a box with centred lines of text; the first line is its name."""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' "
            f"stroke='{INK}'/>"
        )
        top = y + height / 2 - (len(lines) - 1) * LINE_HEIGHT / 2 + 5
        for number, line in enumerate(lines):
            assert len(line) * LETTER_WIDTH < width, f"{line!r} does not fit its box"
            weight = " font-weight='600'" if number == 0 else ""
            self.parts.append(
                f"<text x='{x + width / 2:g}' y='{top + number * LINE_HEIGHT:g}' "
                f"text-anchor='middle'{weight}>{escape(line)}</text>"
            )

    def arrow(
        self, *points: tuple[int, int], label: str = "", at: tuple[int, int] = (0, 0)
    ) -> None:
        """Draw an arrow along points, with a label at a given position."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(
            f"<polyline points='{path}' fill='none' stroke='{ACCENT}' stroke-width='1.5' "
            "marker-end='url(#tip)'/>"
        )
        if label:
            self.note(at[0], at[1], label)

    def note(self, x: int, y: int, text: str, anchor: str = "start") -> None:
        """Write a line of small text."""
        self.parts.append(
            f"<text x='{x}' y='{y}' text-anchor='{anchor}' font-size='12' "
            f"fill='{ACCENT}'>{escape(text)}</text>"
        )

    def svg(self) -> str:
        """Return the picture as SVG."""
        body = "\n".join(self.parts)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' "
            f"width='{self.width}' height='{self.height}' {FONT} fill='{INK}' role='img' "
            f"aria-label='{escape(self.title)}'>\n<title>{escape(self.title)}</title>\n"
            "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='8' "
            f"markerHeight='8' orient='auto'><path d='M0,0 L8,4 L0,8 z' fill='{ACCENT}'/>"
            "</marker></defs>\n"
            f"<rect width='{self.width}' height='{self.height}' fill='{PAPER}'/>\n{body}\n</svg>\n"
        )


def flow_of_a_turn() -> Picture:
    """Draw the states of a turn, from the request to the answer."""
    picture = Picture("The flow of a turn", 930, 520)
    picture.box(20, 20, 160, 50, "client", "sends one input")
    picture.box(20, 220, 160, 60, "requires_action", "keeps the lane")
    picture.box(280, 20, 200, 50, "Accept", "one transaction")
    picture.box(280, 120, 200, 50, "queued", "durable, waits its turn")
    picture.box(280, 220, 200, 60, "running", "owns the lane, new epoch", fill=SHADE)
    picture.box(280, 350, 200, 50, "Finish", "one transaction")
    picture.box(280, 450, 200, 50, "completed", "recorded, then answered")
    picture.box(640, 20, 270, 50, "an earlier turn", "its recorded result is returned")
    picture.box(640, 120, 270, 50, "cancelled", "reset, interrupt, cancel, delete")
    picture.box(640, 220, 270, 60, "model's server", "gets a projection of the log")
    picture.box(640, 350, 270, 50, "interrupted", "output is kept; a retry resumes")
    picture.box(640, 450, 270, 50, "failed", "the partial answer is kept")
    picture.arrow((180, 45), (280, 45))
    picture.arrow((480, 45), (640, 45), label="repeated request", at=(500, 38))
    picture.arrow((380, 70), (380, 120), label="lane busy", at=(390, 100))
    picture.arrow((280, 60), (260, 60), (260, 228), (280, 228))
    picture.note(252, 150, "lane free", anchor="end")
    picture.arrow((380, 170), (380, 220), label="Claim, when next", at=(390, 200))
    picture.arrow((480, 138), (640, 138))
    picture.arrow((480, 229), (560, 229), (560, 158), (640, 158))
    picture.arrow((480, 251), (640, 251), label="request, no lock held", at=(490, 246))
    picture.arrow((640, 269), (480, 269), label="answer, after heals", at=(490, 285))
    picture.arrow((380, 280), (380, 350))
    picture.note(370, 320, "items, usage, state: one commit", anchor="end")
    picture.arrow((450, 280), (450, 312), (560, 312), (560, 375), (640, 375))
    picture.note(568, 335, "worker died")
    picture.arrow((380, 400), (380, 450))
    picture.arrow((480, 385), (560, 385), (560, 475), (640, 475))
    picture.arrow((280, 251), (180, 251), label="client's tools", at=(194, 246))
    picture.arrow((180, 269), (280, 269), label="tool outputs", at=(192, 285))
    picture.arrow((280, 475), (8, 475), (8, 45), (20, 45), label="terminal event", at=(24, 468))
    return picture


def life_of_a_session() -> Picture:
    """Draw the generations of a key and what ends them."""
    picture = Picture("The life of a session", 930, 400)
    picture.box(20, 35, 170, 50, "key", "agent:main:direct:ada")
    picture.box(290, 30, 190, 60, "generation 1", "ses_A, live", fill=SHADE)
    picture.box(640, 30, 270, 60, "idle", "no turn runs; nothing is written")
    picture.box(290, 150, 190, 60, "generation 1", "ses_A, retired")
    picture.box(640, 150, 270, 60, "generation 2", "ses_B, live, empty", fill=SHADE)
    picture.box(290, 290, 190, 60, "fork", "ses_C, no key")
    picture.box(640, 290, 270, 60, "tombstone", "content erased, id never reused")
    picture.arrow((190, 60), (290, 60), label="first request", at=(200, 53))
    picture.arrow((480, 50), (640, 50), label="time passes", at=(510, 43))
    picture.arrow((640, 72), (480, 72), label="soft rollover", at=(520, 90))
    picture.arrow((385, 90), (385, 150), label="reset, daily, /new: one transaction", at=(395, 125))
    picture.arrow((480, 170), (640, 170), label="next one", at=(510, 163))
    picture.arrow((640, 192), (480, 192), label="restore", at=(520, 210))
    picture.arrow((385, 210), (385, 290), label="fork: a reference, no copy", at=(395, 255))
    picture.arrow((775, 210), (775, 290), label="delete", at=(785, 255))
    picture.note(20, 385, "A late writer to any of them finds a higher epoch and changes nothing.")
    return picture


PICTURES = {"flow-of-a-turn.svg": flow_of_a_turn, "life-of-a-session.svg": life_of_a_session}


def draw_all(folder: Path) -> None:
    """Write every picture into a folder."""
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw().svg())

"""The pictures of the documentation, drawn from what is written here."""

from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

FONT = "font-family='system-ui, sans-serif' font-size='14'"
INK, PAPER, SHADE, ACCENT = "#333333", "#ffffff", "#eef3f8", "#2f6f9f"
LINE_HEIGHT = 18


@dataclass
class Picture:
    """Boxes and arrows on a sheet."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, width: int, height: int, *lines: str, fill: str = PAPER) -> None:
        """Draw a box with lines of text in its middle; the first line is its name."""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' "
            f"stroke='{INK}'/>"
        )
        top = y + height / 2 - (len(lines) - 1) * LINE_HEIGHT / 2 + 5
        for number, line in enumerate(lines):
            weight = " font-weight='600'" if number == 0 else ""
            self.parts.append(
                f"<text x='{x + width / 2:g}' y='{top + number * LINE_HEIGHT:g}' "
                f"text-anchor='middle'{weight}>{escape(line)}</text>"
            )

    def arrow(
        self, *points: tuple[int, int], label: str = "", at: tuple[int, int] = (0, 0)
    ) -> None:
        """Draw an arrow along points, with a label where it is said."""
        path = " ".join(f"{x},{y}" for x, y in points)
        self.parts.append(
            f"<polyline points='{path}' fill='none' stroke='{ACCENT}' stroke-width='1.5' "
            "marker-end='url(#tip)'/>"
        )
        if label:
            self.note(at[0], at[1], label)

    def note(self, x: int, y: int, text: str, anchor: str = "start") -> None:
        """Write a small line."""
        self.parts.append(
            f"<text x='{x}' y='{y}' text-anchor='{anchor}' font-size='12' "
            f"fill='{ACCENT}'>{escape(text)}</text>"
        )

    def svg(self) -> str:
        """Return the picture."""
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
    """Draw what happens to one input, from the request to the answer."""
    picture = Picture("The flow of a turn", 860, 500)
    picture.box(20, 20, 150, 50, "client", "sends one input")
    picture.box(230, 20, 190, 50, "Accept", "one transaction")
    picture.box(230, 120, 190, 50, "queued", "durable, behind others")
    picture.box(230, 220, 190, 50, "running", "has the lane, new epoch", fill=SHADE)
    picture.box(230, 330, 190, 50, "Finish", "one transaction")
    picture.box(230, 430, 190, 50, "completed", "recorded, then answered")
    picture.box(560, 20, 270, 50, "a turn that came before", "same idempotency key")
    picture.box(560, 120, 270, 50, "cancelled", "reset, interrupt, cancel, delete")
    picture.box(560, 220, 270, 50, "model's server", "shown a projection of the log")
    picture.box(560, 330, 270, 50, "failed", "the partial answer is kept")
    picture.box(560, 430, 270, 50, "interrupted", "its worker died; a retry reopens it")
    picture.box(20, 220, 150, 50, "requires_action", "keeps the lane")
    picture.arrow((170, 45), (230, 45))
    picture.arrow((420, 45), (560, 45), label="it is a repeat", at=(440, 38))
    picture.arrow((325, 70), (325, 120), label="lane busy", at=(335, 100))
    picture.arrow((325, 170), (325, 220), label="Claim: lane free, turn next", at=(335, 200))
    picture.arrow((420, 145), (560, 145))
    picture.arrow((420, 235), (560, 235), label="request, no lock held", at=(425, 228))
    picture.arrow((560, 257), (420, 257), label="answer; heals before it", at=(425, 275))
    picture.arrow(
        (325, 270), (325, 330), label="items, usage, state: all or nothing", at=(335, 305)
    )
    picture.arrow((325, 380), (325, 430))
    picture.arrow((420, 355), (560, 355))
    picture.arrow((420, 370), (490, 370), (490, 455), (560, 455))
    picture.arrow((230, 235), (170, 235), label="client's tools", at=(165, 213))
    picture.arrow((170, 257), (230, 257), label="outputs", at=(178, 275))
    picture.arrow((230, 455), (10, 455), (10, 45), (20, 45), label="terminal event", at=(20, 448))
    return picture


def life_of_a_session() -> Picture:
    """Draw what a key has been: generations, their log, and what ends them."""
    picture = Picture("The life of a session", 860, 400)
    picture.box(20, 30, 150, 50, "key", "agent:main:direct:ada")
    picture.box(250, 30, 180, 60, "generation 1", "ses_A, live", fill=SHADE)
    picture.box(560, 30, 270, 60, "idle", "no turn: nothing is written for it")
    picture.box(250, 150, 180, 60, "generation 1", "ses_A, retired")
    picture.box(560, 150, 270, 60, "generation 2", "ses_B, live, empty", fill=SHADE)
    picture.box(250, 290, 180, 60, "fork", "ses_C, no key")
    picture.box(560, 290, 270, 60, "tombstone", "content erased, id never reused")
    picture.arrow((170, 55), (250, 55), label="first contact", at=(174, 48))
    picture.arrow((430, 50), (560, 50), label="time passes", at=(450, 43))
    picture.arrow((560, 72), (430, 72), label="soft rollover: all stays", at=(432, 90))
    picture.arrow((340, 90), (340, 150), label="reset, daily, /new: one transaction", at=(350, 125))
    picture.arrow((430, 172), (560, 172), label="the next one", at=(450, 165))
    picture.arrow((560, 195), (430, 195), label="restore", at=(470, 213))
    picture.arrow((340, 210), (340, 290), label="fork: a pointer, no copy", at=(350, 255))
    picture.arrow((695, 210), (695, 290), label="delete", at=(705, 255))
    picture.note(20, 385, "a late writer of any of them meets a higher epoch and changes nothing")
    return picture


PICTURES = {"flow-of-a-turn.svg": flow_of_a_turn, "life-of-a-session.svg": life_of_a_session}


def draw_all(folder: Path) -> None:
    """Draw every picture into a folder."""
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw().svg())

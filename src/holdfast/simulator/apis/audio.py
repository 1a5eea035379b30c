"""The transcription endpoint of the Audio API, which takes a form with a recording."""

from holdfast.simulator.apis.responses_input import require_known_model
from holdfast.simulator.delivery.errors import Problem, invalid, missing, openai_error
from holdfast.simulator.state.call import ApiAnswer, Call
from holdfast.simulator.state.forms import read_form
from holdfast.simulator.state.world import World

FORMATS = ("flac", "m4a", "mp3", "mp4", "mpeg", "mpga", "oga", "ogg", "wav", "webm")
MAX_BYTES = 25 * 1024 * 1024


def transcribe(world: World, call: Call) -> ApiAnswer:
    """Answer POST /v1/audio/transcriptions."""
    content_type = call.headers.get("content-type", "")
    if not content_type.startswith("multipart/form-data"):
        raise invalid("You must provide a multipart form with a file.", None)
    _, files = read_form(content_type, call.raw)
    if not call.model:
        raise missing("model")
    require_known_model(world, call.model)
    file = files.get("file")
    if file is None:
        raise missing("file")
    if len(call.raw) > MAX_BYTES:
        message = f"413: Maximum content size limit ({MAX_BYTES}) exceeded ({len(call.raw)} bytes)"
        raise Problem(413, openai_error(message, type="server_error"))
    # The real server goes by the extension of the name, not by the type or the content.
    if file.name.rpartition(".")[2].lower() not in FORMATS:
        raise invalid(f"Unrecognized file format. Supported formats: {list(FORMATS)}", None)
    script = call.script
    text = script.text if script is not None else None
    if text is None:
        text = f"Speech of {len(file.content)} bytes."
    return ApiAnswer(body={"text": text})

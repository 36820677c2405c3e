"""OpenTelemetry spans to a file of OTLP JSON lines, or to an OTLP/HTTP endpoint."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnilab.errors import BadInput, Error
from omnilab.profile.otel import needs_sdk

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan


class Unreachable(Error):
    """An endpoint that did not take the spans."""


def write_file(path: Path, found: Iterable[Sequence[ReadableSpan]]) -> int:
    """Write OTLP JSON, a line a trace, as OpenTelemetry's file exporters do; return how many lines.

    BadInput when `path` exists or cannot be written.
    """
    lines = [json.dumps(otlp_json(spans), ensure_ascii=False, separators=(",", ":")) for spans in found]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
    except FileExistsError as error:
        raise BadInput(f"{path}: exists already; name another with --out") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}; name another file") from error
    return len(lines)


def otlp_json(spans: Sequence[ReadableSpan]) -> dict[str, Any]:
    """Return an export request as OTLP JSON: ids are hex there, which protobuf's own JSON writes as base64."""
    needs_sdk()
    from google.protobuf.json_format import MessageToDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

    message = MessageToDict(encode_spans(spans), use_integers_for_enums=True)
    for resource in message["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & span.keys():
                    span[name] = base64.b64decode(span[name]).hex()
    return message


def send(endpoint: str, found: Iterable[Sequence[ReadableSpan]], timeout_s: float = 10) -> int:
    """Send spans to an OTLP/HTTP endpoint, a request a trace; return how many traces were taken.

    `OTEL_EXPORTER_OTLP_HEADERS` and the like hold. Unreachable, with the reason, when one is not taken in `timeout_s`;
    BadInput for what is no http URL.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise BadInput(f"--endpoint {endpoint!r} is no http URL; a collector's is http://HOST:4318/v1/traces")
    needs_sdk()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    exporter, taken = OTLPSpanExporter(endpoint=endpoint, timeout=timeout_s), 0
    try:
        for spans in found:
            with _said_by(logging.getLogger("opentelemetry.exporter.otlp.proto.http")) as said:
                result = exporter.export(spans)
            if result is not SpanExportResult.SUCCESS:
                why = said[0] if said else "it gave no reason"
                raise Unreachable(f"{endpoint}: took {taken} traces, then none within {timeout_s:g} s: {why}")
            taken += 1
    finally:
        exporter.shutdown()
    return taken


@contextmanager
def _said_by(logger: logging.Logger) -> Iterator[list[str]]:
    """Collect what a logger says: the exporter tells its reasons to nobody else."""
    said: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Kept()
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)

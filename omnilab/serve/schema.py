"""The server's description for tools: OpenAPI, made from the types of its bodies."""

from __future__ import annotations

from typing import Any

from msgspec.json import schema_components

from omnilab.serve.bodies import ChatBody, DetokenizeBody, SpeechBody, TokenizeBody

BODIES: dict[str, tuple[type, str]] = {
    "/v1/chat/completions": (ChatBody, "Answer a conversation in text, speech or both; streamed or whole"),
    "/v1/audio/speech": (SpeechBody, "Say a text"),
    "/tokenize": (TokenizeBody, "The ids of a text"),
    "/detokenize": (DetokenizeBody, "The text of ids"),
}
READ = {
    "/health": "Is the pipeline alive? 503 once a stage has ended",
    "/metrics": "Prometheus metrics",
    "/v1/models": "The model, with its recipe, modalities, voices and limits",
}
PROFILE = {
    "/start_profile": "Begin to profile every stage, once no request runs",
    "/stop_profile": "End it and name the files",
}
ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def openapi(version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    kinds = [kind for kind, _ in BODIES.values()]
    references, components = schema_components(kinds, ref_template="#/components/schemas/{name}")
    answers = {
        "200": {"description": "done"},
        "default": {"description": "refused or failed", "content": {"application/json": {"schema": ERROR}}},
    }
    paths: dict[str, Any] = {path: {"get": {"summary": said, "responses": answers}} for path, said in READ.items()}
    paths |= {path: {"post": {"summary": said, "responses": answers}} for path, said in PROFILE.items()}
    for (path, (_, said)), reference in zip(BODIES.items(), references, strict=True):
        body = {"required": True, "content": {"application/json": {"schema": reference}}}
        paths[path] = {"post": {"summary": said, "requestBody": body, "responses": answers}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "omnilab", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }

"""How nodes and links of the network look, in Cytoscape's words; the colours of nodes come with each answer."""

from __future__ import annotations

from typing import Any


def stylesheet(theme: str) -> list[dict[str, Any]]:
    """Styles by selector; classes are given by assets/explorer.js."""
    ink, line, edge = ("#1d2226", "#9aa3ab", "#6d757c") if theme == "light" else ("#e8e6e1", "#59636c", "#98a1a9")
    strong = "#d55e00" if theme == "light" else "#f0813d"
    return [
        {
            "selector": "node",
            "style": {"width": 16, "height": 16, "background-color": line, "border-width": 1, "border-color": edge},
        },
        {"selector": "node[paint]", "style": {"background-color": "data(paint)"}},
        {"selector": "node[diameter]", "style": {"width": "data(diameter)", "height": "data(diameter)"}},
        {
            "selector": "node[label]",
            "style": {
                "color": ink,
                "font-size": 17,
                "min-zoomed-font-size": 8,
                "text-valign": "top",
                "text-margin-y": -2,
            },
        },
        {"selector": "node.named", "style": {"label": "data(label)"}},
        {
            "selector": "edge",
            "style": {"curve-style": "haystack", "haystack-radius": 0, "width": 1, "line-color": line, "opacity": 0.35},
        },
        {"selector": "edge.w2", "style": {"width": 1.3, "opacity": 0.45}},
        {"selector": "edge.w3", "style": {"width": 1.8, "opacity": 0.55}},
        {"selector": "edge.w4", "style": {"width": 2.6, "opacity": 0.7}},
        {"selector": "edge.dense", "style": {"opacity": 0.13, "width": 1}},
        {"selector": "node.source", "style": {"border-width": 3, "border-color": strong, "label": "data(label)"}},
        {
            "selector": "node.chosen",
            "style": {"border-width": 5, "border-color": strong, "label": "data(label)", "font-weight": "bold"},
        },
        {
            "selector": "edge.walk",
            "style": {
                "curve-style": "straight",
                "target-arrow-shape": "triangle",
                "target-arrow-color": strong,
                "line-color": strong,
                "width": 3,
                "opacity": 0.95,
                "z-index": 9,
            },
        },
    ]

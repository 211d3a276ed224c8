"""Equations as MathML, which browsers draw by themselves: pages need no network and no script."""

from __future__ import annotations

from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml


def inline(translator: Any, node: nodes.math) -> None:
    """Write an equation within a line."""
    translator.body.append(latex2mathml.tex2mathml(node.astext()))
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    """Write an equation of its own, with its name where it has one."""
    label = node.get("label")
    anchor = f' id="{escape(node["ids"][0])}"' if node.get("ids") else ""
    number = f'<span class="equation-name">{escape(label)}</span>' if label else ""
    formula = latex2mathml.tex2mathml(node.astext(), as_block=True)
    translator.body.append(f'<div class="equation"{anchor}>{formula}{number}</div>\n')
    raise nodes.SkipNode

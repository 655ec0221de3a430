"""The docstrings under the fields of a class, which Python itself forgets."""

import ast
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from itertools import chain, pairwise


def field_docstrings(cls: type) -> Mapping[str, str]:
    """The docstring under each field (or enum member) of the class and its own bases that has one."""
    found: dict[str, str] = {}
    bases = [one for one in reversed(cls.__mro__) if one.__module__.startswith("hivemind_addon")] or [cls]
    bodies = (_classes(one.__module__)[one.__qualname__].body for one in bases)
    for target, below in chain.from_iterable(map(pairwise, bodies)):
        match target, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found


@cache
def _classes(module: str) -> Mapping[str, ast.ClassDef]:
    """All classes of a module by their qualified names: the file is parsed once for all."""
    found: dict[str, ast.ClassDef] = {}

    def search(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.ClassDef(name=name):
                    found[prefix + name] = child
                    search(child, f"{prefix}{name}.")
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    search(child, f"{prefix}{name}.<locals>.")
                case _:
                    pass

    search(ast.parse(inspect.getsource(sys.modules[module])), "")
    return found

"""The docstrings under the fields of a class, which Python itself forgets."""

import ast
import inspect
from collections.abc import Mapping


def field_docstrings(cls: type) -> Mapping[str, str]:
    """The docstring under each field (or enum member) of the class itself that has one."""
    tree = ast.parse(inspect.getsource(cls))
    body = tree.body[0]
    if not isinstance(body, ast.ClassDef):
        return {}
    found: dict[str, str] = {}
    for target, below in zip(body.body, body.body[1:], strict=False):
        match target, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = inspect.cleandoc(text)
            case _:
                pass
    return found

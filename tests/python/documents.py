"""The Python blocks of a document, to be run as they are written but for what it leaves open."""
import re


def python_blocks(path, filled_in):
    """Yields each block compiled, in order; a traceback points into the document. `filled_in`: what is put for what,
    (pattern, replacement)."""
    text = path.read_text()
    blocks = []
    for block in re.finditer(r"```python\n(.*?)```", text, re.S):
        code = block[1]
        for pattern, replacement in filled_in:
            code = re.sub(pattern, replacement, code)
        line = text.count("\n", 0, block.start(1))
        blocks.append(compile("\n" * line + code, path.name, "exec"))
    assert len(blocks) == len(re.findall(r"^```python", text, re.M))
    return blocks

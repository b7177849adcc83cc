"""The program in docs/kv-cache.md compiles against the public header, with a plain C++ compiler and no CUDA.

Run by CTest as `test_kv_cache_guide.py COMPILER SOURCE_FOLDER`; standard library only.
"""
import pathlib
import re
import subprocess
import sys
import unittest

COMPILER, SOURCE = "c++", pathlib.Path()


class GuideTest(unittest.TestCase):
    def test_code_blocks_compile(self):
        blocks = re.findall(r"^```cpp\n(.*?)^```", (SOURCE / "docs" / "kv-cache.md").read_text(), re.M | re.S)
        self.assertTrue(blocks)
        for block in blocks:
            done = subprocess.run([COMPILER, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-fsyntax-only",
                                   "-I", SOURCE / "include", "-x", "c++", "-"], input=block, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    COMPILER, SOURCE = sys.argv.pop(1), pathlib.Path(sys.argv.pop(1))
    unittest.main()

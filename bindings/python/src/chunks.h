// ChunkedLLM for Python; quire/chunked.py gives it names, defaults and keywords.
#pragma once

#include <nanobind/nanobind.h>

namespace quire::python {

// Binds the chunks. Call it after the classes LLM, Stream, Options, Blocks and Sequence.
void bind_chunks(nanobind::module_& module);

}  // namespace quire::python

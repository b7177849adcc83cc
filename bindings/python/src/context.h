// ContextManager for Python; quire/context.py gives it names, defaults and keywords.
#pragma once

#include <nanobind/nanobind.h>

namespace quire::python {

// Binds the contexts. Call it after the classes LLM and Blocks.
void bind_contexts(nanobind::module_& module);

}  // namespace quire::python

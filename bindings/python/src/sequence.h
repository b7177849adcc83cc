// Sequences, handles on blocks and direct inference for Python; quire/sequence.py gives them names,
// defaults and keywords.
#pragma once

#include <nanobind/nanobind.h>

#include "quire/llm.h"

namespace quire::python {

// Binds the sequences. `llm` gets the calls that take or give these classes. Call it after the
// class Stream.
void bind_sequences(nanobind::module_& module, nanobind::class_<LLM>& llm);

}  // namespace quire::python

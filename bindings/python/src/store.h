// Store and CheckpointManager for Python; quire/store.py and quire/checkpoints.py give them names,
// defaults and keywords.
#pragma once

#include <nanobind/nanobind.h>

namespace quire::python {

// Binds the stores. Call it after the classes LLM and Sequence.
void bind_stores(nanobind::module_& module);

}  // namespace quire::python

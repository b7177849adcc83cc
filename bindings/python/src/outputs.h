// Results as plain Python values; quire/outputs.py gives them names.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "quire/output.h"

namespace quire::python {

// None for what is not there.
[[nodiscard]] nanobind::object or_none(const std::string& text);
[[nodiscard]] nanobind::dict to_dict(const GenerationOutput& output);
[[nodiscard]] nanobind::dict to_dict(const Delta& delta);
// As explain gives them.
[[nodiscard]] nanobind::list to_list(const std::vector<ReusePart>& parts);
// The logits become a NumPy array [rows, vocab_size] that owns the memory; nothing is copied.
[[nodiscard]] nanobind::dict to_dict(ForwardOutput output);

}  // namespace quire::python

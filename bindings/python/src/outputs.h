// Results as plain Python values; quire/outputs.py gives them names.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "quire/context.h"
#include "quire/output.h"

namespace quire::python {

// Returns None for what is not there.
[[nodiscard]] nanobind::object or_none(const std::string& text);
[[nodiscard]] nanobind::dict to_dict(const GenerationOutput& output);
[[nodiscard]] nanobind::dict to_dict(const ContextManager::Answer& answer);
[[nodiscard]] nanobind::dict to_dict(const Delta& delta);
// Returns a list of what `describe` makes of each thing.
template <class Things, class Describe>
[[nodiscard]] nanobind::list list_of(const Things& things, Describe describe) {
  nanobind::list list;
  for (const auto& thing : things) {
    list.append(describe(thing));
  }
  return list;
}
// Returns the parts as explain() gives them.
[[nodiscard]] nanobind::list to_list(const std::vector<ReusePart>& parts);
// Returns the parts as explain_across_salts() gives them.
[[nodiscard]] nanobind::list to_list(const std::vector<CachedPart>& parts);
// Returns a NumPy array of this shape that owns the memory. Nothing is copied.
[[nodiscard]] nanobind::object to_array(std::vector<float> values,
                                        std::initializer_list<std::size_t> shape);
// Returns the output with logits as an array [rows, vocab_size].
[[nodiscard]] nanobind::dict to_dict(ForwardOutput output);
[[nodiscard]] nanobind::dict to_dict(const KVAccuracy& accuracy);

}  // namespace quire::python

// SamplingParams and LLMOptions between Python and C++, made from the lists of quire/fields.h.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "quire/llm.h"
#include "quire/sampling.h"

namespace quire::python {

// Sets fields by name. ValueError naming an unknown key or a value out of range; TypeError naming a
// field of another type.
void set_fields(SamplingParams& params, const nanobind::dict& fields);

// Reads None, a dict or a SamplingParams.
[[nodiscard]] SamplingParams to_params(const nanobind::handle& object);

// Reads one for each object of the list.
[[nodiscard]] std::vector<SamplingParams> to_params_list(const nanobind::list& objects);

void bind_params(nanobind::module_& module);

// Binds LLMOptions as Options, with the names of all fields in `fields`.
void bind_options(nanobind::module_& module);

}  // namespace quire::python

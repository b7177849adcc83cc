#include "quire/engine/sampling_json.h"

#include <new>
#include <string>
#include <variant>

#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/engine/json_values.h"
#include "quire/fields.h"
#include "quire/result.h"
#include "quire/sampling.h"

namespace quire::engine {

Result<std::string> sampling_json(const SamplingParams& params) try {
  base::Json object = base::Json::object();
  for (const SamplingField& field : kSamplingFields) {
    std::visit([&](auto member) { set_member(object, field.name, params.*member); }, field.member);
  }
  return base::write_json(object);
} catch (const std::bad_alloc&) {
  return base::no_memory("the JSON of sampling parameters");
}

}  // namespace quire::engine

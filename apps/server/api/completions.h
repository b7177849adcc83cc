// POST /v1/completions.
#pragma once

#include <functional>

#include "api/call.h"
#include "api/generation.h"

namespace quire::server {

// Takes the plan that a body asks for.
using TakePlan = std::function<void(Services&, const CallPtr&, const GenerationPlan&)>;

// Returns the table of the body.
[[nodiscard]] const FieldTable& completion_table();
// Reads a body, encodes its prompts on a worker, and hands the plan to `take`.
void plan_completion(Services& services, CallPtr call, TakePlan take);

}  // namespace quire::server

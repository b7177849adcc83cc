// POST /v1/completions (rule O9).
#pragma once

#include <functional>

#include "api/call.h"
#include "api/generation.h"

namespace quire::server {

// Takes a plan that was made of a body.
using TakePlan = std::function<void(Services&, const CallPtr&, const GenerationPlan&)>;

// Table of the body.
[[nodiscard]] const FieldTable& completion_table();
// Reads a body, encodes its prompts on a worker, and hands the plan to `take`.
void plan_completion(Services& services, CallPtr call, TakePlan take);

}  // namespace quire::server

// Log probabilities of a prompt's own tokens, for `echo`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire::server {

// Returns, for each token of a prompt, its log probability after the tokens before it, and the
// `top` likeliest. The entries are like those of GenerationOutput::logprobs; the first is empty.
// Computes the whole prompt, in slices, apart from the cache of `salt`: a cached token has no
// logits. Blocks; a worker calls.
// Errors: those of LLM::forward.
[[nodiscard]] Result<std::vector<TokenLogprobs>> prompt_logprobs(LLM& llm,
                                                                 std::span<const TokenId> ids,
                                                                 std::int64_t top,
                                                                 const std::string& salt,
                                                                 const Interrupt& interrupted);

}  // namespace quire::server

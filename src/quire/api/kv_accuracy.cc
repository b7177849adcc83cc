#include "quire/engine/kv_accuracy.h"

#include <new>
#include <string>
#include <vector>

#include "quire/api/llm_impl.h"
#include "quire/base/no_memory.h"
#include "quire/interrupt.h"
#include "quire/llm.h"
#include "quire/output.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

Result<KVAccuracy> LLM::kv_accuracy(const Prompt& prompt, const std::string& kv_dtype,
                                    const Interrupt& interrupted) try {
  QUIRE_TRY(const auto engine, impl_->open_engine());
  QUIRE_TRY(const std::vector<TokenId> ids, prompt_ids(*engine, prompt, interrupted));
  return engine::kv_accuracy(*engine, ids, kv_dtype, interrupted);
} catch (const std::bad_alloc&) {
  return base::no_memory("the call");
}

}  // namespace quire

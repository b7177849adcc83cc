// TurnFormat: the text that a chat template writes around the turns of a conversation.
#pragma once

#include <optional>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/work_meter.h"
#include "quire/engine/model_bundle.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/types.h"

namespace quire::contexts {

// Renders the model's chat template; `variables` may replace the model's own tokens. `meter` counts
// the work, null: one of its own. kUnsupported for models without a template.
[[nodiscard]] Result<text::RenderedPrompt> render_chat(const engine::TextBundle& text,
                                                       base::Json messages,
                                                       bool add_generation_prompt,
                                                       base::Json variables,
                                                       base::WorkMeter* meter = nullptr);

struct TurnFormat {
  std::vector<TokenId> opening;  // opening of the assistant's turn: the generation prompt
  std::vector<TokenId> closing;  // closing of the assistant's turn: what follows its text
  std::optional<TokenId> bos;    // BOS token, if prompts begin with it
};

// Returns an empty format where there is no template, or where it writes nothing.
[[nodiscard]] TurnFormat make_turn_format(const engine::TextBundle& text);

}  // namespace quire::contexts

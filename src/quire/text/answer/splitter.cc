#include "quire/text/answer/splitter.h"

#include <memory>
#include <string_view>

#include "quire/text/answer/harmony_splitter.h"
#include "quire/text/answer/mark_splitter.h"
#include "quire/text/answer/marked_text.h"
#include "quire/text/answer/parts.h"
#include "quire/text/answer/style.h"
#include "quire/text/answer/tool_schemas.h"

namespace quire::text::answer {

std::unique_ptr<Splitter> make_splitter(const Style& style, std::string_view prompt_end,
                                        const ToolSchemas& schemas, Parts& parts) {
  switch (style.kind) {
    case Style::Kind::kPlain:
      return nullptr;
    case Style::Kind::kHarmony:
      return std::make_unique<HarmonySplitter>(prompt_end, schemas, parts);
    case Style::Kind::kMarks:
      break;
  }
  if (style.think_open.empty() && schemas.empty()) {
    return nullptr;  // nothing to find
  }
  const bool thinks =
      !style.think_open.empty() && trimmed_end(prompt_end).ends_with(style.think_open);
  return std::make_unique<MarkSplitter>(style, thinks, schemas, parts);
}

}  // namespace quire::text::answer

#include "quire/text/template_separators.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/text/chunk_format.h"
#include "quire/text/tokenizer.h"
#include "quire/text/utf8.h"

namespace quire::text {

using base::str_cat;

namespace {

// Templates come from strangers; sharing out costs the product of both.
constexpr std::size_t kMaxSeparatorBytes = 4096;
constexpr std::size_t kMaxTokenBytes = 256;

}  // namespace

Result<Separators> separators_of(std::span<const std::vector<std::string>> renderings) {
  Separators separators{.before_system = renderings[0][0],
                        .system_context = renderings[1][1],
                        .context_context = renderings[2][2],
                        .context_query = renderings[1][2],
                        .system_query = renderings[0][1],
                        .behind_query = renderings[0][2]};
  for (std::size_t num_contexts = 0; num_contexts < renderings.size(); ++num_contexts) {
    const auto& between = renderings[num_contexts];
    for (std::size_t i = 0; i < between.size(); ++i) {
      const std::string& separator = i == 0                    ? separators.before_system
                                     : i + 1 == between.size() ? separators.behind_query
                                     : num_contexts == 0       ? separators.system_query
                                     : i == 1                  ? separators.system_context
                                     : i == num_contexts + 1   ? separators.context_query
                                                               : separators.context_context;
      if (separator != between[i]) {
        return {ErrorCode::kUnsupported,
                str_cat("what stands around the texts changes with the number of contexts: ",
                        base::quoted(separator), " and ", base::quoted(between[i]), " with ",
                        num_contexts)};
      }
    }
  }
  return separators;
}

std::string without(const RenderedPrompt& prompt, bool own) {
  std::string out;
  for (const RenderedSpan& span : prompt.spans) {
    const bool is_own = span.from.source == Provenance::kTemplate;
    out += is_own == own ? std::string(span.text.size(), '\0') : span.text;
  }
  return out;
}

Result<std::vector<std::string>> split_at(const RenderedPrompt& prompt,
                                          std::span<const std::string_view> texts) {
  const std::string foreign = without(prompt, true);
  const std::string all = prompt.text();
  std::vector<std::string> between;
  std::size_t end = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::size_t at = foreign.find(texts[i]);
    const char* wrong = at == std::string::npos ? "is not shown as it is"
                        : foreign.find(texts[i], at + 1) != std::string::npos ? "is shown twice"
                        : at < end ? "is shown out of order"
                                   : nullptr;
    if (wrong != nullptr) {
      const char* which = i == 0                  ? "the system text "
                          : i + 1 == texts.size() ? "the query "
                                                  : "a context ";
      return {ErrorCode::kUnsupported, str_cat(which, wrong)};
    }
    between.push_back(all.substr(end, at - end));
    end = at + texts[i].size();
  }
  between.push_back(all.substr(end));
  return between;
}

bool begins_special(const Tokenizer& tokenizer, std::string_view text) {
  const TextSpan span{.text = text};
  const auto ids = tokenizer.encode_spans({&span, 1});
  if (!ids.ok() || ids->empty() || !tokenizer.is_special(ids->front())) {
    return false;
  }
  const auto token = tokenizer.id_to_token(ids->front());  // <unk> is special and spelled otherwise
  return token.ok() && text.starts_with(*token);
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  const auto ends = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(ends.first - a.begin());
}

Result<ChunkFormat> share_out(const Separators& separators, std::size_t hint,
                              const Tokenizer& tokenizer) {
  const std::string& between = separators.context_context;
  if (between.size() > kMaxSeparatorBytes) {
    return {ErrorCode::kUnsupported, str_cat(between.size(), " bytes stand between two contexts, ",
                                             kMaxSeparatorBytes, " can be searched")};
  }
  std::vector<std::tuple<bool, std::size_t, std::size_t>> places;  // ordinary, distance, position
  for (std::size_t at = 0; at <= between.size(); ++at) {
    if (at == between.size() || !is_utf8_continuation(between[at])) {
      const bool special =
          begins_special(tokenizer, std::string_view(between).substr(at, kMaxTokenBytes));
      places.emplace_back(!special, at < hint ? hint - at : at - hint, at);
    }
  }
  std::sort(places.begin(), places.end());
  for (const auto& [ordinary, distance, at] : places) {
    const std::string suffix = between.substr(0, at);
    const std::string prefix = between.substr(at);
    if (!separators.system_context.ends_with(prefix) ||
        !separators.context_query.starts_with(suffix)) {
      continue;
    }
    const std::string system_suffix =
        separators.system_context.substr(0, separators.system_context.size() - prefix.size());
    const std::string query_prefix = separators.context_query.substr(suffix.size());
    if (separators.system_query == system_suffix + query_prefix) {
      ChunkFormat format;
      format.system = {.prefix = separators.before_system, .suffix = system_suffix};
      format.context = {.prefix = prefix, .suffix = suffix};
      format.query = {.prefix = query_prefix, .suffix = separators.behind_query};
      return format;
    }
  }
  return {ErrorCode::kUnsupported,
          str_cat("what stands between two contexts, ", base::quoted(between),
                  ", does not fit what stands before the first and behind the last one")};
}

}  // namespace quire::text

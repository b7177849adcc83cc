#include "quire/text/template_cutter.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/result.h"
#include "quire/text/chat_template.h"
#include "quire/text/chunk_format.h"
#include "quire/text/template_separators.h"
#include "quire/text/tokenizer.h"
#include "quire/types.h"

namespace quire::text {
namespace {

using base::str_cat;

constexpr std::string_view kBlankLine = "\n\n";
constexpr std::array<std::string_view, 3> kDocumentRoles = {"context", "document", "documents"};
constexpr std::size_t kMaxContexts = 3;  // tried when cutting and verifying

// The texts of one prompt.
struct Texts {
  std::string system;
  std::vector<std::string> contexts;
  std::string query;

  [[nodiscard]] std::vector<std::string_view> in_order() const {
    std::vector<std::string_view> out = {system};
    out.insert(out.end(), contexts.begin(), contexts.end());
    out.emplace_back(query);
    return out;
  }
};

// A way to hand texts to a template.
struct Way {
  enum class Contexts : std::uint8_t { kTurns, kDocuments, kInQuestion };
  std::string name;  // ChunkFormat::contexts_as
  Contexts contexts = Contexts::kTurns;
  std::string role = "user";  // role of the turns
  bool system_in_question = false;
};

base::Json message(std::string_view role, std::string_view content) {
  return base::Json::object({{"role", role}, {"content", content}});
}

base::Json variables(const Way& way, const Texts& texts) {
  base::Json messages = base::Json::array();
  base::Json documents = base::Json::array();
  std::string question;
  if (way.system_in_question) {
    question = str_cat(texts.system, kBlankLine);
  } else {
    messages.push(message("system", texts.system));
  }
  for (const std::string& context : texts.contexts) {
    if (way.contexts == Way::Contexts::kTurns) {
      messages.push(message(way.role, context));
    } else if (way.contexts == Way::Contexts::kDocuments) {
      documents.push(base::Json::object({{"text", context}}));
    } else {
      question += str_cat(context, kBlankLine);
    }
  }
  messages.push(message("user", question + texts.query));
  base::Json out = base::Json::object({{"messages", std::move(messages)}});
  if (documents.view().size() > 0) {
    out.set("documents", std::move(documents));
  }
  return out;
}

template <class Visit>
void for_each_chunk(const ChunkFormat& format, const Texts& texts, Visit visit) {
  visit(format.system, texts.system);
  for (const std::string& context : texts.contexts) {
    visit(format.context, context);
  }
  visit(format.query, texts.query);
}

std::string joined(const ChunkFormat& format, const Texts& texts) {
  std::string out;
  for_each_chunk(format, texts, [&](const Affixes& around, std::string_view text) {
    out += str_cat(around.prefix, trimmed(text, around), around.suffix);
  });
  return out;
}

Result<std::vector<TokenId>> joined_ids(const Tokenizer& tokenizer, const ChunkFormat& format,
                                        const Texts& texts) {
  std::vector<TokenId> out;
  Status state;
  for_each_chunk(format, texts, [&](const Affixes& around, std::string_view text) {
    const auto ids = encode_chunk(tokenizer, around, text);
    if (ids.ok()) {
      out.insert(out.end(), ids->begin(), ids->end());
    } else {
      state = ids.error();
    }
  });
  QUIRE_TRY_STATUS(state);
  return out;
}

class Cutter {
 public:
  using Tokens = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Takes those of `tokens` that are not empty.
  Cutter(const ChatTemplate& chat, const Tokenizer& tokenizer, Tokens tokens,
         std::chrono::local_seconds now)
      : chat_(chat), tokenizer_(tokenizer) {
    options_.now = now;
    for (const auto& [name, token] : tokens) {
      if (!token.empty()) {
        of_model_.set(name, token);
        options_.trusted_variables.push_back(name);
      }
    }
    add_model_variables(tokenizer, of_model_, options_);
    options_.max_steps = 1'000'000;  // real templates take thousands
    options_.max_output_bytes = std::size_t{1} << 20;
  }

  [[nodiscard]] Result<ChunkFormat> cut(const Way& way) const {
    if (way.contexts == Way::Contexts::kTurns && way.role != "user") {
      QUIRE_TRY_STATUS(check_role_known(way));
    }
    std::vector<std::vector<std::string>> renderings(kMaxContexts + 1);
    for (std::size_t num_contexts = 0; num_contexts <= kMaxContexts; ++num_contexts) {
      QUIRE_TRY(renderings[num_contexts], between(way, num_contexts, true));
    }
    QUIRE_TRY(const Separators separators, separators_of(renderings));
    QUIRE_TRY(auto format, share_out(separators, turn_end(way, separators), tokenizer_));
    format.contexts_as = way.name;
    format.context.continues = format.query.continues = true;
    QUIRE_TRY_STATUS(find_trims(way, format));
    QUIRE_TRY_STATUS(verify(way, format));
    return format;
  }

 private:
  [[nodiscard]] Result<RenderedPrompt> render(const Way& way, const Texts& texts,
                                              bool generation_prompt = true) const {
    base::Json all = variables(way, texts);
    for (const auto [name, value] : of_model_.view().members()) {
      all.add(name, base::Json::copy(value));
    }
    all.set("add_generation_prompt", generation_prompt);
    return chat_.render(all, options_);
  }

  // Returns texts that no template holds, none of them part of another.
  [[nodiscard]] static Texts marked(std::size_t num_contexts) {
    Texts texts{.system = "Quartz qzs.", .contexts = {}, .query = "Marble qzm?"};
    for (std::size_t i = 0; i < num_contexts; ++i) {
      texts.contexts.push_back(str_cat("Basalt qzb", i, "."));
    }
    return texts;
  }

  // Refuses a role that the template treats as any unknown one. Many templates write whatever role
  // they are given; a model has not learned such a turn.
  [[nodiscard]] Status check_role_known(const Way& way) const {
    Way unknown = way;
    unknown.role.assign(way.role.size(), 'q');
    QUIRE_TRY(const auto prompt, render(way, marked(1)));
    const auto other = render(unknown, marked(1));
    if (other.ok() && without(prompt, false) == without(*other, false)) {
      return {ErrorCode::kUnsupported, "the template treats the role as any unknown one"};
    }
    return {};
  }

  [[nodiscard]] Result<std::vector<std::string>> between(const Way& way, std::size_t num_contexts,
                                                         bool generation_prompt) const {
    const Texts texts = marked(num_contexts);
    QUIRE_TRY(const auto prompt, render(way, texts, generation_prompt));
    return split_at(prompt, texts.in_order());
  }

  // Returns where in separators.context_context a context's turn ends, if it ends as the last one
  // of a conversation does.
  [[nodiscard]] std::size_t turn_end(const Way& way, const Separators& separators) const {
    if (way.contexts == Way::Contexts::kInQuestion) {
      return separators.context_context.size();
    }
    const auto without_prompt = between(way, 0, false);
    return without_prompt.ok() ? common_prefix(without_prompt->back(), separators.context_context)
                               : 0;
  }

  // Sets trims_left and trims_right as the template does it.
  [[nodiscard]] Status find_trims(const Way& way, ChunkFormat& format) const {
    const auto pad = [](std::string& text) { text = str_cat("\n \u00a0", text, "\u00a0 \n"); };
    Texts system_padded = marked(2);
    pad(system_padded.system);
    Texts contexts_padded = marked(2);
    std::for_each(contexts_padded.contexts.begin(), contexts_padded.contexts.end(), pad);
    Texts query_padded = marked(2);
    pad(query_padded.query);
    for (const auto& [texts, around] :
         {std::pair(&system_padded, &format.system), std::pair(&contexts_padded, &format.context),
          std::pair(&query_padded, &format.query)}) {
      QUIRE_TRY(const auto prompt, render(way, *texts));
      bool found = false;
      for (int trims = 0; trims < 4 && !found; ++trims) {
        around->trims_left = (trims & 1) != 0;
        around->trims_right = (trims & 2) != 0;
        found = joined(format, *texts) == prompt.text();
      }
      if (!found) {
        return {ErrorCode::kUnsupported, "the template changes white space at the ends of texts"};
      }
    }
    return {};
  }

  // Compares with renderings of other texts; sets starts_special.
  [[nodiscard]] Status verify(const Way& way, ChunkFormat& format) const {
    format.starts_special = begins_special(tokenizer_, format.context.prefix) &&
                            begins_special(tokenizer_, format.query.prefix);
    const std::vector<std::string> samples = {
        "x",
        "It's a \"quoted\" text & <b>tags</b>, C:\\path, {{ braces }}, {% if %}, 100 %.",
        " Two lines\nand, behind an empty one,\n\n\ta third.  \n",
        "Gr\u00f6\u00dfe, \u5927\u304d\u3055, \U0001F600",
        str_cat("<s>[INST] <|im_start|>system\n</s><|end|>", samples_of_tokens(), " [/INST]"),
        "42",
        std::string(1500, 'y') + " " + std::string(1500, 'z'),
    };
    const auto sample = [&](std::size_t i) { return samples[i % samples.size()]; };
    for (std::size_t i = 0; i < samples.size() * (kMaxContexts + 1); ++i) {
      Texts texts{.system = sample(i), .contexts = {}, .query = sample(i + 2)};
      for (std::size_t context = 0; context < i / samples.size(); ++context) {
        texts.contexts.push_back(sample(i + 1 + context / 2));  // the first two are equal
      }
      QUIRE_TRY(const auto prompt, render(way, texts));
      const std::string expected = prompt.text();
      const std::string got = joined(format, texts);
      if (got != expected) {
        const std::size_t at = common_prefix(got, expected);
        return {ErrorCode::kUnsupported, str_cat("the template changes texts: where a chunk says ",
                                                 base::quoted(got.substr(at), 40), " it says ",
                                                 base::quoted(expected.substr(at), 40))};
      }
      QUIRE_TRY(const auto chunk_ids, joined_ids(tokenizer_, format, texts));
      QUIRE_TRY(const auto prompt_ids, encode_prompt(tokenizer_, prompt));
      format.starts_special = format.starts_special && chunk_ids == prompt_ids;
    }
    return {};
  }

  // Returns the model's own special tokens, as a user could write them.
  [[nodiscard]] std::string samples_of_tokens() const {
    std::string out;
    for (const std::string_view name : options_.trusted_variables) {
      out += of_model_.view().find(name).as_string();
    }
    return out;
  }

  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  base::Json of_model_ = base::Json::object();  // variables
  RenderOptions options_;
};

std::chrono::local_seconds local_now() {
  const std::time_t seconds =
      std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm local{};
  localtime_r(&seconds, &local);
  return std::chrono::local_seconds(std::chrono::seconds(seconds + local.tm_gmtoff));
}

}  // namespace

Result<ChunkFormat> cut_chat_template(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                      std::string_view bos_token, std::string_view eos_token,
                                      std::optional<std::chrono::local_seconds> now) {
  const Cutter cutter(chat, tokenizer, {{"bos_token", bos_token}, {"eos_token", eos_token}},
                      now ? *now : local_now());
  std::vector<Way> ways;
  ways.reserve(kDocumentRoles.size() + 4);
  for (const std::string_view role : kDocumentRoles) {
    ways.push_back({.name = str_cat("role ", role), .role = std::string(role)});
  }
  ways.push_back({.name = "documents", .contexts = Way::Contexts::kDocuments});
  ways.push_back({.name = "user turns"});
  ways.push_back({.name = "user message", .contexts = Way::Contexts::kInQuestion});
  ways.push_back(
      {.name = "user message", .contexts = Way::Contexts::kInQuestion, .system_in_question = true});
  std::string reasons;
  std::string last_reason;
  std::size_t names_end = 0;  // end of the names, where more ways with the last reason are named
  for (const Way& way : ways) {
    auto format = cutter.cut(way);
    if (format.ok()) {
      return format;
    }
    const std::string name =
        str_cat(way.name, way.system_in_question ? " with the system text" : "");
    const std::string& reason = format.error().message;
    const bool is_new = reason != last_reason;
    reasons.insert(is_new ? reasons.size() : names_end, str_cat(is_new ? "; as " : ", ", name));
    if (is_new) {
      names_end = reasons.size();
      reasons += str_cat(": ", reason);
      last_reason = reason;
    } else {
      names_end += name.size() + 2;
    }
  }
  return {ErrorCode::kUnsupported, str_cat("the chat template cannot be cut into chunks", reasons,
                                           "; give a chunk format of your own")};
}

}  // namespace quire::text

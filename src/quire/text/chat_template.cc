#include "quire/text/chat_template.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/jinja/ast.h"
#include "quire/text/jinja/error.h"
#include "quire/text/jinja/interpreter.h"
#include "quire/text/jinja/parser.h"
#include "quire/text/jinja/runtime.h"
#include "quire/text/jinja/value.h"
#include "quire/text/normal_text.h"
#include "quire/text/render_meter.h"
#include "quire/text/sourced_text.h"
#include "quire/text/tokenizer.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire::text {
namespace {

static_assert(kFromTemplate == Provenance::kTemplate);
static_assert(kFromArgument == Provenance::kArgument);

// JSON to values whose strings come from `source`. Names in messages are told from texts by where
// they stand.
class Converter {
 public:
  enum class Field : std::uint8_t { kMessage, kContent, kPart, kElsewhere };
  Converter(Meter& meter, std::int32_t source, Field field = Field::kElsewhere)
      : meter_(meter), source_(source), field_(field) {}

  // Converts a JSON value. Recursion is bounded: `level` counts the containers around `value`.
  Result<jinja::Value> convert(base::JsonView value, int level = 0) const {
    if (meter_.failed()) {
      return meter_.error();
    }
    if (level > kMaxContainerDepth) {
      return jinja::invalid("variables nest deeper than ", kMaxContainerDepth);
    }
    switch (value.kind()) {
      case base::JsonKind::kNull:
        return jinja::Value(jinja::None{}, source_);
      case base::JsonKind::kBool:
        return jinja::Value(value.as_bool(), source_);
      case base::JsonKind::kInt:
        return jinja::Value(value.as_int(), source_);
      case base::JsonKind::kUint:
        if (value.as_uint() > INT64_MAX) {
          return jinja::invalid("the integer ", value.as_uint(), " is beyond 64 bits");
        }
        return jinja::Value(static_cast<std::int64_t>(value.as_uint()), source_);
      case base::JsonKind::kDouble:
        return jinja::Value(value.as_double(), source_);
      case base::JsonKind::kString:
        return text(value.as_string());
      case base::JsonKind::kArray:
        return list(value, level);
      case base::JsonKind::kObject:
        break;
    }
    return dict(value, level);
  }

  // Returns an array whose items come from the message of their index.
  static Result<jinja::Value> messages(Meter& meter, base::JsonView array) {
    jinja::SequenceBuilder out(meter);
    for (std::size_t i = 0; i < array.size(); ++i) {
      const auto source = static_cast<std::int32_t>(i);
      QUIRE_TRY(auto item, Converter(meter, source, Field::kMessage).convert(array[i], 1));
      out.push(std::move(item));
    }
    return std::move(out).build();
  }

 private:
  Result<jinja::Value> text(std::string_view bytes) const {
    if (const std::size_t bad = valid_utf8_prefix(bytes); bad != bytes.size()) {
      return jinja::invalid("a string of the variables is no UTF-8 at byte ", bad, ": ",
                            base::quoted(bytes.substr(0, bad)));
    }
    return jinja::Value::string(make_text(&meter_, bytes, source_));
  }

  Result<jinja::Value> list(base::JsonView array, int level) const {
    jinja::SequenceBuilder out(meter_);
    for (const base::JsonView item : array.elements()) {
      QUIRE_TRY(auto converted, inside("").convert(item, level + 1));
      out.push(std::move(converted));
    }
    return std::move(out).build();
  }

  Result<jinja::Value> dict(base::JsonView object, int level) const {
    jinja::DictBuilder out(meter_);
    for (const auto [key, item] : object.members()) {
      QUIRE_TRY(auto name, text(key));
      QUIRE_TRY(auto converted, inside(key).convert(item, level + 1));
      out.push(std::move(name), std::move(converted));
    }
    return std::move(out).build();
  }

  // Returns the converter of the value under `key` of a dict, or of an item of a list.
  [[nodiscard]] Converter inside(std::string_view key) const {
    const bool is_name =
        (field_ == Field::kMessage && key == "role") || (field_ == Field::kPart && key == "type");
    const Field field = field_ == Field::kMessage && key == "content" ? Field::kContent
                        : field_ == Field::kContent                   ? Field::kPart
                                                                      : Field::kElsewhere;
    return {meter_, is_name ? as_name(source_) : source_, field};
  }

  Meter& meter_;
  std::int32_t source_;
  Field field_;
};

std::tm calendar_time(const RenderOptions& options) {
  std::tm out{};
  if (options.now) {
    const std::time_t seconds = options.now->time_since_epoch().count();
    gmtime_r(&seconds, &out);
  } else {
    const std::time_t seconds =
        std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    localtime_r(&seconds, &out);
  }
  return out;
}

// Makes a scope with the variables that the template reads; others are not converted.
Result<jinja::ScopePtr> make_scope(const jinja::Template& parsed, jinja::Runtime& runtime,
                                   base::JsonView variables, const RenderOptions& options) {
  auto scope = std::make_shared<jinja::Scope>(runtime.meter(), nullptr);
  const auto& trusted = options.trusted_variables;
  for (const std::string& name : parsed.variables) {
    if (!variables.contains(name)) {
      continue;
    }
    const base::JsonView variable = variables.find(name);
    const bool is_trusted = std::find(trusted.begin(), trusted.end(), name) != trusted.end();
    const bool is_name = !variable.is_array() && !variable.is_object();
    const std::int32_t source = is_trusted ? kFromTemplate
                                : is_name  ? as_name(kFromArgument)
                                           : kFromArgument;
    auto value = name == "messages" && variable.is_array()
                     ? Converter::messages(runtime.meter(), variable)
                     : Converter(runtime.meter(), source).convert(variable);
    QUIRE_TRY(auto converted, std::move(value));
    scope->set(name, std::move(converted));
  }
  return scope;
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  jinja::Template parsed;
};

std::string RenderedPrompt::text() const {
  std::string out;
  for (const auto& span : spans) {
    out += span.text;
  }
  return out;
}

ChatTemplate::ChatTemplate(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  QUIRE_TRY(auto parsed, jinja::parse_template(source));
  return ChatTemplate(std::make_unique<const Impl>(Impl{std::string(source), std::move(parsed)}));
}

Result<RenderedPrompt> ChatTemplate::render(base::JsonView variables,
                                            const RenderOptions& options) const {
  const Limits limits{.steps = options.max_steps,
                      .text_bytes = options.max_output_bytes,
                      .memory_bytes = 4 * options.max_output_bytes};
  jinja::Runtime runtime(limits, calendar_time(options), options.meter);
  QUIRE_TRY(const auto scope, make_scope(impl_->parsed, runtime, variables, options));
  QUIRE_TRY(const auto text, jinja::run_template(impl_->parsed, runtime, scope));
  RenderedPrompt out;
  out.spans.reserve(text->ranges().size());
  std::size_t begin = 0;
  for (const auto& range : text->ranges()) {
    out.spans.push_back({std::string(text->view().substr(begin, range.end - begin)),
                         {.source = without_name(range.source), .is_name = is_name(range.source)}});
    begin = range.end;
  }
  return out;
}

const std::string& ChatTemplate::source() const { return impl_->source; }

std::vector<std::string> ChatTemplate::variables() const { return impl_->parsed.variables; }
std::vector<std::string> ChatTemplate::words() const { return impl_->parsed.words; }

void add_model_variables(const Tokenizer& tokenizer, base::Json& variables,
                         RenderOptions& options) {
  for (const NamedToken& token : tokenizer.named_tokens()) {
    if (variables.add(token.name, token.text)) {
      options.trusted_variables.emplace_back(token.name);
    }
  }
  variables.add("tools", nullptr);
  variables.add("documents", nullptr);
}

Result<std::vector<TokenId>> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt,
                                           base::WorkMeter* meter) {
  std::vector<TextSpan> spans;
  spans.reserve(prompt.spans.size());
  for (const RenderedSpan& span : prompt.spans) {
    spans.push_back({.text = span.text,
                     .author = span.from.source == Provenance::kTemplate ? Author::kTemplate
                               : span.from.is_name                       ? Author::kName
                                                                         : Author::kUser});
  }
  return tokenizer.encode_spans(spans, meter);
}

}  // namespace quire::text

#include "quire/text/pattern.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "quire/base/json.h"
#include "quire/base/str.h"
#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/regex.h"

namespace quire::text {

Result<Pattern> Pattern::from_json(base::JsonView value, std::string_view where) {
  const base::JsonView literal = value.find("String");
  const base::JsonView source = value.find("Regex");
  if (literal.is_string()) {
    return Pattern::literal(std::string(literal.as_string()));
  }
  if (source.is_string()) {
    QUIRE_TRY(Regex compiled, Regex::compile(source.as_string()));
    return Pattern::regex(std::move(compiled));
  }
  return {ErrorCode::kInvalidArgument,
          base::str_cat(where, ": pattern must be {\"String\": ...} or {\"Regex\": ...}")};
}

std::string Pattern::replace_all(std::string_view text, std::string_view content,
                                 base::WorkMeter& meter) const {
  std::string out;
  std::size_t copied = 0;
  for_each(text, meter, [&](std::size_t begin, std::size_t end) {
    if (!meter.write(begin - copied + content.size())) {
      return false;
    }
    out += text.substr(copied, begin - copied);
    out += content;
    copied = end;
    return true;
  });
  if (meter.write(text.size() - copied)) {
    out += text.substr(copied);
  }
  return out;
}

}  // namespace quire::text

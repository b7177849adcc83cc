// Python's two ways to format: "%s" % x and "{}".format(x).
#pragma once

#include "quire/result.h"
#include "quire/text/jinja/meter.h"
#include "quire/text/jinja/value.h"

namespace quire::text::jinja {

// format % arguments, where a tuple holds several arguments and a dict named ones. Literal parts
// keep the sources of the format, inserted ones those of their values. kInvalidArgument for a bad
// format or argument, kUnsupported for %c, %a and `*`.
[[nodiscard]] Result<Value> format_percent(Meter& meter, const String& format,
                                           const Value& arguments);

// format.format(...). kUnsupported for fields inside a field's format.
[[nodiscard]] Result<Value> format_braces(Meter& meter, const String& format,
                                          const Arguments& arguments);

}  // namespace quire::text::jinja

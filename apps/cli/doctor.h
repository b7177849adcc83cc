// Shows the report of `quire doctor`.
#pragma once

#include <boost/json/fwd.hpp>

#include "quire/result.h"

namespace quire::cli {

// Returns kDevice with the findings for each instruction set that failed the self-test in a report
// of doctor_json, else ok.
[[nodiscard]] Status check_self_test(const boost::json::value& report);

}  // namespace quire::cli

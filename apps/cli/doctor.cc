#include "doctor.h"

#include <CLI/CLI.hpp>
#include <boost/json.hpp>
#include <memory>
#include <string>
#include <utility>

#include "command.h"
#include "options.h"
#include "output.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire::cli {
namespace {

int doctor(Format format) {
  const auto text = doctor_json();
  if (!text.ok()) {
    return fail(text.error());
  }
  const boost::json::value report = boost::json::parse(*text);
  const Status done = print(format == Format::kJson ? *text + "\n" : format_listing(report));
  if (!done.ok()) {
    return fail(done.error());
  }
  const Status healthy = check_self_test(report);
  return healthy.ok() ? kExitOk : fail(healthy.error());
}

}  // namespace

Status check_self_test(const boost::json::value& report) {
  std::string found;
  for (const auto& test : report.at("isa").at("self_test").as_object()) {
    const boost::json::string& outcome = test.value().as_string();
    if (outcome != "ok") {
      found.append(found.empty() ? "" : "; ").append(outcome);
    }
  }
  return found.empty() ? Status() : Error{.code = ErrorCode::kDevice, .message = std::move(found)};
}

void add_doctor(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("doctor", "Show processor, devices and libraries; test the kernels");
  auto format = std::make_shared<Format>(Format::kText);
  add_format(*command, *format);
  command->callback([format, &action] { action = [format] { return doctor(*format); }; });
}

}  // namespace quire::cli

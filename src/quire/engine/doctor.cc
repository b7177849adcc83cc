// doctor_json: what this machine offers, which kernels are used, and whether they compute right.
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/version.hpp>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "quire/attention/self_check.h"
#include "quire/base/json.h"  // IWYU pragma: keep (json is its alias)
#include "quire/device/accelerator.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/self_check.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire {
namespace {

namespace json = base::json;

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown";
}

std::int64_t memory_bytes() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
}

Status test_kernels(device::Isa isa) {
  QUIRE_TRY_STATUS(kernels::self_test(isa));
  return attention::self_test(isa);
}

json::object isa_report() {
  json::array supported;
  json::object self_test;
  for (const device::Isa isa : device::supported_isas()) {
    const auto name = device::isa_name(isa);
    const Status status = test_kernels(isa);
    supported.emplace_back(std::string(name));
    self_test[std::string(name)] = status.ok() ? "ok" : status.error().message;
  }
  return {{"chosen", std::string(device::isa_name(device::best_isa()))},
          {"supported", std::move(supported)},
          {"self_test", std::move(self_test)}};
}

// What LLMOptions::device may be here, and why not more.
json::object device_report() {
  json::object report{{"cpu", cpu_name()}};
  const auto accelerator = device::Accelerator::open("cuda");
  report["cuda"] = accelerator.ok() ? (*accelerator)->name() : accelerator.error().message;
  return report;
}

}  // namespace

const char* version() { return QUIRE_VERSION; }

std::string doctor_json() {
  utsname system{};
  ::uname(&system);
  const json::object report = {
      {"version", version()},
      {"compiler", __VERSION__},
      {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
      {"cpu", cpu_name()},
      {"cores", std::thread::hardware_concurrency()},
      {"memory_bytes", memory_bytes()},
      {"isa", isa_report()},
      {"libraries", {{"boost", BOOST_LIB_VERSION}}},
      {"devices", device_report()},
  };
  return json::serialize(report);
}

}  // namespace quire

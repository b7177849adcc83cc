// doctor_json: what this machine offers, which kernels are used, and whether they compute right.
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/version.hpp>
#include <cstdint>
#include <fstream>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "quire/attention/self_check.h"
#include "quire/base/json.h"
#include "quire/base/no_memory.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/isa.h"
#include "quire/kernels/self_check.h"
#include "quire/result.h"
#include "quire/tools.h"

namespace quire {
namespace {

using base::Json;

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

Json isa_report() {
  Json supported = Json::array();
  Json self_test = Json::object();
  for (const device::Isa isa : device::supported_isas()) {
    const std::string_view name = device::isa_name(isa);
    const Status status = test_kernels(isa);
    supported.push(name);
    self_test.set(name, status.ok() ? "ok" : status.error().message);
  }
  return Json::object({{"chosen", device::isa_name(device::best_isa())},
                       {"supported", std::move(supported)},
                       {"self_test", std::move(self_test)}});
}

// What LLMOptions::device may be here, and why not more.
Json device_report() {
  Json report = Json::object({{"cpu", cpu_name()}});
  const auto accelerator = device::Accelerator::open("cuda");
  report.set("cuda", accelerator.ok() ? (*accelerator)->name() : accelerator.error().message);
  return report;
}

}  // namespace

const char* version() { return QUIRE_VERSION; }

Result<std::string> doctor_json() try {
  utsname system{};
  ::uname(&system);
  const Json report = Json::object({
      {"version", version()},
      {"compiler", __VERSION__},
      {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
      {"cpu", cpu_name()},
      {"cores", std::thread::hardware_concurrency()},
      {"memory_bytes", memory_bytes()},
      {"isa", isa_report()},
      {"libraries", Json::object({{"boost", BOOST_LIB_VERSION}})},
      {"devices", device_report()},
  });
  return base::write_json(report);
} catch (const std::bad_alloc&) {
  return base::no_memory("looking at the machine");
}

}  // namespace quire

// doctor(): what this machine offers, which kernels are used, and whether they compute right.
#include <sys/utsname.h>
#include <unistd.h>

#include <boost/version.hpp>
#include <cstdint>
#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "quire/attention/self_check.h"
#include "quire/base/no_memory.h"
#include "quire/device/accelerator.h"
#include "quire/device/cpu/isa.h"
#include "quire/diagnostics.h"
#include "quire/kernels/self_check.h"
#include "quire/result.h"

namespace quire {
namespace {

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

std::vector<MachineInfo::InstructionSet> tested_isas() {
  std::vector<MachineInfo::InstructionSet> isas;
  for (const device::Isa isa : device::supported_isas()) {
    const Status status = test_kernels(isa);
    isas.push_back({.name = std::string(device::isa_name(isa)),
                    .self_test = status.ok() ? "ok" : status.error().message});
  }
  return isas;
}

// Returns the name of the GPU, or why there is none that can be used.
std::string cuda_name() {
  const auto accelerator = device::Accelerator::open("cuda");
  return accelerator.ok() ? std::string((*accelerator)->name()) : accelerator.error().message;
}

}  // namespace

Result<MachineInfo> doctor() try {
  utsname system{};
  ::uname(&system);
  return MachineInfo{
      .version = QUIRE_VERSION,
      .compiler = __VERSION__,
      .system = std::string(system.sysname) + " " + system.release + " " + system.machine,
      .cpu = cpu_name(),
      .cores = std::thread::hardware_concurrency(),
      .memory_bytes = memory_bytes(),
      .chosen_isa = std::string(device::isa_name(device::best_isa())),
      .isas = tested_isas(),
      .boost_version = BOOST_LIB_VERSION,
      .cuda = cuda_name()};
} catch (const std::bad_alloc&) {
  return base::no_memory("looking at the machine");
}

}  // namespace quire

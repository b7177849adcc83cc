#include "quire/device/cpu/isa.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace quire::device {
namespace {

constexpr Isa kAll[] = {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAvx512, Isa::kAmx};

TEST(Isa, NamesRoundTrip) {
  for (const Isa isa : kAll) {
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  }
  EXPECT_FALSE(parse_isa("avx").has_value());
  EXPECT_FALSE(parse_isa("").has_value());
  EXPECT_FALSE(parse_isa("AVX2").has_value());
}

TEST(Isa, PortableRunsEverywhereAndSetsAreNested) {
  EXPECT_TRUE(isa_supported(Isa::kPortable));
  for (std::size_t i = 1; i < std::size(kAll); ++i) {
    EXPECT_TRUE(!isa_supported(kAll[i]) || isa_supported(kAll[i - 1])) << isa_name(kAll[i]);
  }
}

TEST(Isa, IntelWithoutTilesWidensBf16AndEverybodyElseTakesTheLastSet) {
  const Processor emerald_rapids = {"GenuineIntel", 6, 207};
  const Processor cooper_lake = {"GenuineIntel", 6, 85};
  const Processor zen4 = {"AuthenticAMD", 25, 17};
  EXPECT_EQ(fastest_isa(Isa::kAvx512, emerald_rapids), Isa::kAvx512Vnni);
  EXPECT_EQ(fastest_isa(Isa::kAvx512, cooper_lake), Isa::kAvx512);
  EXPECT_EQ(fastest_isa(Isa::kAvx512, zen4), Isa::kAvx512);
  EXPECT_EQ(fastest_isa(Isa::kAvx512, {}), Isa::kAvx512);
  for (const Isa last : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512Vnni, Isa::kAmx}) {
    EXPECT_EQ(fastest_isa(last, emerald_rapids), last);
    EXPECT_EQ(fastest_isa(last, zen4), last);
  }
}

TEST(Isa, BestIsOneOfTheLastTwoSupported) {
  const std::vector<Isa> supported = supported_isas();
  EXPECT_TRUE(isa_supported(best_isa()));
  EXPECT_TRUE(best_isa() == supported.back() ||
              (supported.back() == Isa::kAvx512 && best_isa() == Isa::kAvx512Vnni));
}

// Oracle: the flags that the kernel shows for this machine.
TEST(Isa, DetectionAgreesWithTheOperatingSystem) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && line.rfind("flags", 0) != 0) {
  }
  if (line.empty()) {
    GTEST_SKIP() << "no flags in /proc/cpuinfo";
  }
  const std::string flags = line + " ";
  const auto has = [&](const char* name) {
    return flags.find(std::string(" ") + name + " ") != std::string::npos;
  };
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512_vnni = avx2 && has("avx512f") && has("avx512bw") && has("avx512dq") &&
                           has("avx512vl") && has("avx512_vnni");
  const bool avx512 = avx512_vnni && has("avx512_bf16");
  EXPECT_EQ(isa_supported(Isa::kAvx2), avx2);
  EXPECT_EQ(isa_supported(Isa::kAvx512Vnni), avx512_vnni);
  EXPECT_EQ(isa_supported(Isa::kAvx512), avx512);
  EXPECT_EQ(isa_supported(Isa::kAmx),
            avx512 && has("avx512vbmi") && has("amx_tile") && has("amx_bf16") && has("amx_int8"));
}

}  // namespace
}  // namespace quire::device

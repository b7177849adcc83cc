#include "quire/fields.h"

#include <gtest/gtest.h>

#include <boost/pfr.hpp>
#include <set>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/options.h"
#include "quire/sampling.h"

namespace quire {
namespace {

// Returns the addresses of the values of `owner` that the list names, in its order.
template <class Owner, class Field>
std::vector<const void*> listed(const Owner& owner, std::span<const Field> fields) {
  std::vector<const void*> addresses;
  for (const Field& field : fields) {
    addresses.push_back(
        std::visit([&owner](auto member) { return static_cast<const void*>(&(owner.*member)); },
                   field.member));
  }
  return addresses;
}

// Returns the addresses of all members of `owner`.
template <class Owner>
std::vector<const void*> members(const Owner& owner) {
  std::vector<const void*> addresses;
  boost::pfr::for_each_field(owner, [&](const auto& member) { addresses.push_back(&member); });
  return addresses;
}

TEST(Fields, SamplingListIsTheWholeStructInItsOrder) {
  const SamplingParams params;
  EXPECT_EQ(listed(params, sampling_fields()), members(params))
      << "a member of SamplingParams is missing in engine/fields.cc, or stands elsewhere";
}

TEST(Fields, LLMListIsTheWholeStructInItsOrderButForFunctions) {
  const LLMOptions options;
  std::vector<const void*> all = members(options);
  std::erase(all, static_cast<const void*>(&options.progress));
  std::erase(all, static_cast<const void*>(&options.log));
  std::erase(all, static_cast<const void*>(&options.on_pressure));
  std::erase(all, static_cast<const void*>(&options.drafter));
  EXPECT_EQ(listed(options, llm_fields()), all)
      << "a member of LLMOptions is missing in engine/fields.cc, or stands elsewhere";
}

template <class Field>
void expect_usable(std::span<const Field> fields) {
  std::set<std::string_view> names;
  for (const Field& field : fields) {
    const std::string_view name = field.name;
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_"), std::string_view::npos)
        << name;
    EXPECT_TRUE(names.insert(name).second) << name << " stands there twice";
    EXPECT_EQ(std::string_view(field.help).find('\n'), std::string_view::npos) << name;
    EXPECT_FALSE(std::string_view(field.help).empty()) << name;
  }
}

TEST(Fields, EachHasANameOfItsOwnAndOneLineOfHelp) {
  expect_usable(sampling_fields());
  expect_usable(llm_fields());
}

}  // namespace
}  // namespace quire

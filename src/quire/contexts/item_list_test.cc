#include "quire/contexts/item_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "quire/result.h"

namespace quire::contexts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Item item_of(const std::string& id, const std::string& name = "") {
  Item item;
  item.info.id = id;
  item.info.name = name;
  return item;
}

std::vector<std::string> ids_in(const ItemList& items) {
  std::vector<std::string> ids;
  for (const auto& item : items) {
    ids.push_back(item->info.id);
  }
  return ids;
}

TEST(ItemList, FindsByIdByNameAndByTheBeginningOfAnId) {
  ItemList items;
  Item* const ada = items.add(item_of("f00dcafe", "ada"));
  Item* const lars = items.add(item_of("beef1234"));
  EXPECT_THAT(ids_in(items), ElementsAre("f00dcafe", "beef1234")) << "in the order of adding";
  EXPECT_EQ(items.find("f00dcafe").value(), ada);
  EXPECT_EQ(items.find("ada").value(), ada);
  EXPECT_EQ(items.find("f00d").value(), ada);
  EXPECT_EQ(items.find("beef1").value(), lars);
  EXPECT_EQ(items.find_id("f00d"), nullptr) << "the whole id";
}

TEST(ItemList, WhatIsMissingShortOrAmbiguousIsNamed) {
  ItemList items;
  items.add(item_of("aaaa1111"));
  items.add(item_of("aaaa2222"));
  items.add(item_of("aaab3333"));
  for (const std::string name : {"", "aaa", "aab3", "nobody", "aaaa11111", "zzzz"}) {
    const auto found = items.find(name);
    ASSERT_FALSE(found.ok()) << name;
    EXPECT_EQ(found.error().code, ErrorCode::kNotFound);
    EXPECT_EQ(found.error().chunk_id, name);
  }
  EXPECT_THAT(items.find("aaaa").error().message, HasSubstr("2 items"));
  EXPECT_TRUE(items.find("aaaa1").ok());
  EXPECT_TRUE(items.find("aaab").ok());
}

TEST(ItemList, AWholeNameGoesBeforeTheBeginningOfAnId) {
  ItemList items;
  items.add(item_of("cafe1234"));
  Item* const named = items.add(item_of("beef1234", "cafe"));
  EXPECT_EQ(items.find("cafe").value(), named);
}

TEST(ItemList, ErasedAndRenamedItemsAreNotFoundByWhatTheyWereCalled) {
  ItemList items;
  Item* const ada = items.add(item_of("f00dcafe", "ada"));
  items.add(item_of("beef1234", "lars"));
  items.rename(*ada, "eda");
  EXPECT_EQ(items.find_name("ada"), nullptr);
  EXPECT_EQ(items.find("eda").value(), ada);
  EXPECT_EQ(ada->info.name, "eda");
  items.rename(*ada, "");
  EXPECT_EQ(items.find_name("eda"), nullptr);
  EXPECT_EQ(items.find_name(""), nullptr);
  items.erase("beef1234");
  items.erase("beef1234");
  EXPECT_FALSE(items.find("lars").ok());
  EXPECT_FALSE(items.find("beef").ok());
  EXPECT_THAT(ids_in(items), ElementsAre("f00dcafe"));
  items.add(item_of("beef1234", "lars"));
  EXPECT_TRUE(items.find("beef").ok());
  items.clear();
  EXPECT_THAT(ids_in(items), IsEmpty());
  EXPECT_FALSE(items.find("f00dcafe").ok());
}

TEST(ItemListDeathTest, AnIdIsThereOnce) {
  ItemList items;
  items.add(item_of("f00dcafe"));
  EXPECT_DEATH(items.add(item_of("f00dcafe")), "two items of one id");
}

}  // namespace
}  // namespace quire::contexts

// Goal: a tenant's key is random, and stays once it is there.

#include "server/directory/prompt/tenant_keys.h"

#include "gtest/gtest.h"

namespace ckv {
namespace {

TEST(TenantKeys, TheFirstKeyStays) {
  TenantKeys keys;
  EXPECT_FALSE(keys.Find("blue").has_value());
  const TenantKey first = RandomTenantKey();
  const TenantKey second = RandomTenantKey();
  EXPECT_FALSE(first.IsZero());
  EXPECT_NE(first, second);
  EXPECT_TRUE(keys.Add("blue", first));
  EXPECT_FALSE(keys.Add("blue", second));
  EXPECT_EQ(keys.Find("blue"), first);
  EXPECT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys.All().at(0).first, "blue");
}

}  // namespace
}  // namespace ckv

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "deltaport/core/error.hpp"

namespace deltaport::offload::test {

inline std::string mask(int first, int count) {
  std::string text = "0x";
  const char* digits = "0123456789abcdef";
  unsigned long long bits = 0;
  for (int i = first; i < first + count; ++i) bits |= 1ULL << i;
  for (int shift = 28; shift >= 0; shift -= 4) text += digits[(bits >> shift) & 15U];
  return text;
}

/// One accelerator behind a bridge of its own.
inline std::string accelerator_xml(const std::string& pci, int id) {
  return concat("<object type=\"Bridge\" gp_index=\"", 500 + 2 * id,
                "\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"", pci.substr(0, 5), "[", pci.substr(5, 2),
                "-", pci.substr(5, 2), "]\">", "<object type=\"PCIDev\" gp_index=\"", 501 + 2 * id,
                "\" pci_busid=\"", pci,
                "\" pci_type=\"0302 [10de:2330] [10de:16c1] a1\" pci_link_speed=\"0.000000\"/></object>\n");
}

/// A machine with one package of two cores per node, as hwloc writes it. Node n has an accelerator at
/// "0000:1<n>:00.0"; one more, "0000:f0:00.0", hangs on the machine itself.
inline std::string machine_xml(int nodes) {
  const auto sets = [](int first, int count, int node, int node_count) {
    return concat("cpuset=\"", mask(first, count), "\" complete_cpuset=\"", mask(first, count),
                  "\" nodeset=\"", mask(node, node_count), "\" complete_nodeset=\"", mask(node, node_count),
                  "\"");
  };
  int last = 0;
  const auto id = [&last] { return ++last; };
  std::string text =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
      "<topology version=\"2.0\">\n";
  text +=
      concat("<object type=\"Machine\" os_index=\"0\" ", sets(0, 2 * nodes, 0, nodes), " allowed_cpuset=\"",
             mask(0, 2 * nodes), "\" allowed_nodeset=\"", mask(0, nodes), "\" gp_index=\"", id(), "\">\n");
  for (int n = 0; n < nodes; ++n) {
    text += concat("<object type=\"Package\" os_index=\"", n, "\" ", sets(2 * n, 2, n, 1), " gp_index=\"",
                   id(), "\">\n");
    text +=
        concat("<object type=\"NUMANode\" os_index=\"", n, "\" ", sets(2 * n, 2, n, 1), " gp_index=\"", id(),
               "\" local_memory=\"1073741824\"><page_type size=\"4096\" count=\"262144\"/></object>\n");
    for (int core = 2 * n; core < 2 * n + 2; ++core)
      text += concat("<object type=\"Core\" os_index=\"", core, "\" ", sets(core, 1, n, 1), " gp_index=\"",
                     id(), "\"><object type=\"PU\" os_index=\"", core, "\" ", sets(core, 1, n, 1),
                     " gp_index=\"", 100 + id(), "\"/></object>\n");
    text += accelerator_xml(concat("0000:1", n, ":00.0"), n) + "</object>\n";
  }
  return text + accelerator_xml("0000:f0:00.0", nodes) + "</object>\n</topology>\n";
}

}  // namespace deltaport::offload::test

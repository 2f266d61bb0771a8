// A machine for tests, as lstopo writes it: two sockets, each a NUMA node of 64
// GB with one core of two threads. GPUs 18 and 2a are attached to socket 0 and
// 9a to socket 1; the firmware does not report the location of c0. There are
// also a display controller of another vendor and an NVSwitch, which are not
// GPUs.
#ifndef TESSERA_TOPOLOGY_DISCOVERY_TESTING_FAKE_MACHINE_H_
#define TESSERA_TOPOLOGY_DISCOVERY_TESTING_FAKE_MACHINE_H_

namespace tessera::topology {

inline constexpr char kFakeMachineXml[] =
    R"(<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf" allowed_cpuset="0xf" nodeset="0x3" complete_nodeset="0x3" allowed_nodeset="0x3" gp_index="1">
    <object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="2">
      <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="3" local_memory="64000000000"/>
      <object type="Core" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1" complete_nodeset="0x1" gp_index="4">
        <object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="5"/>
        <object type="PU" os_index="1" cpuset="0x2" complete_cpuset="0x2" nodeset="0x1" complete_nodeset="0x1" gp_index="6"/>
      </object>
      <object type="Bridge" gp_index="20" bridge_type="0-1" depth="0" bridge_pci="0000:[00-7f]">
        <object type="PCIDev" gp_index="21" name="VGA" pci_busid="0000:03:00.0" pci_type="0300 [1a03:2000] [1a03:2000] 52" pci_link_speed="0.0"/>
        <object type="PCIDev" gp_index="22" name="GH100" pci_busid="0000:2a:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0"/>
        <object type="PCIDev" gp_index="23" name="GH100" pci_busid="0000:18:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0"/>
        <object type="PCIDev" gp_index="24" name="NVSwitch" pci_busid="0000:07:00.0" pci_type="0680 [10de:22a3] [10de:1796] a1" pci_link_speed="63.0"/>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="7">
      <object type="NUMANode" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="8" local_memory="64000000000"/>
      <object type="Core" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2" complete_nodeset="0x2" gp_index="9">
        <object type="PU" os_index="2" cpuset="0x4" complete_cpuset="0x4" nodeset="0x2" complete_nodeset="0x2" gp_index="10"/>
        <object type="PU" os_index="3" cpuset="0x8" complete_cpuset="0x8" nodeset="0x2" complete_nodeset="0x2" gp_index="11"/>
      </object>
      <object type="Bridge" gp_index="25" bridge_type="0-1" depth="0" bridge_pci="0000:[80-bf]">
        <object type="PCIDev" gp_index="26" name="GH100" pci_busid="0000:9a:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0"/>
      </object>
    </object>
    <object type="Bridge" gp_index="27" bridge_type="0-1" depth="0" bridge_pci="0000:[c0-ff]">
      <object type="PCIDev" gp_index="28" name="GH100" pci_busid="0000:c0:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="63.0"/>
    </object>
  </object>
</topology>
)";

}  // namespace tessera::topology

#endif  // TESSERA_TOPOLOGY_DISCOVERY_TESTING_FAKE_MACHINE_H_

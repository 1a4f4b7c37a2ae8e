# SPDX-License-Identifier: Apache-2.0
# A method of several hundred lines: its line table is longer than 54 and than 512 instructions. The stack
# goes through an early, a middle and a late line of it, and a statement that spans many lines.

require_relative "oracle"

def plain(value)
  value
end

def long_method(depth)
  total = 0
  return long_method(1) if depth == 0
  total += plain(1) + plain(total)
  total += plain(2) + plain(total)
  total += plain(3) + plain(total)
  total += plain(4) + plain(total)
  total += plain(5) + plain(total)
  total += plain(6) + plain(total)
  total += plain(7) + plain(total)
  total += plain(8) + plain(total)
  total += plain(9) + plain(total)
  total += plain(10) + plain(total)
  total += plain(11) + plain(total)
  total += plain(12) + plain(total)
  total += plain(13) + plain(total)
  total += plain(14) + plain(total)
  total += plain(15) + plain(total)
  total += plain(16) + plain(total)
  total += plain(17) + plain(total)
  total += plain(18) + plain(total)
  total += plain(19) + plain(total)
  total += plain(20) + plain(total)
  total += plain(21) + plain(total)
  total += plain(22) + plain(total)
  total += plain(23) + plain(total)
  total += plain(24) + plain(total)
  total += plain(25) + plain(total)
  total += plain(26) + plain(total)
  total += plain(27) + plain(total)
  total += plain(28) + plain(total)
  total += plain(29) + plain(total)
  total += plain(30) + plain(total)
  total += plain(31) + plain(total)
  total += plain(32) + plain(total)
  total += plain(33) + plain(total)
  total += plain(34) + plain(total)
  total += plain(35) + plain(total)
  total += plain(36) + plain(total)
  total += plain(37) + plain(total)
  total += plain(38) + plain(total)
  total += plain(39) + plain(total)
  total += plain(40) + plain(total)
  total += plain(41) + plain(total)
  total += plain(42) + plain(total)
  total += plain(43) + plain(total)
  total += plain(44) + plain(total)
  total += plain(45) + plain(total)
  total += plain(46) + plain(total)
  total += plain(47) + plain(total)
  total += plain(48) + plain(total)
  total += plain(49) + plain(total)
  total += plain(50) + plain(total)
  total += plain(51) + plain(total)
  total += plain(52) + plain(total)
  total += plain(53) + plain(total)
  total += plain(54) + plain(total)
  total += plain(55) + plain(total)
  total += plain(56) + plain(total)
  total += plain(57) + plain(total)
  total += plain(58) + plain(total)
  total += plain(59) + plain(total)
  total += plain(60) + plain(total)
  return long_method(2) if depth == 1
  total += plain(
    [
      plain(1),
      plain(2),
      plain(3),
      plain(4),
      plain(5),
      plain(6),
      plain(7),
      plain(8),
      plain(9),
      plain(10),
      plain(11),
      plain(12),
      plain(13),
      plain(14),
      plain(15),
      plain(16),
      plain(17),
      plain(18),
      plain(19),
      plain(20),
      plain(21),
      plain(22),
      plain(23),
      plain(24),
      plain(25),
      plain(26),
      plain(27),
      plain(28),
      plain(29),
      plain(30),
      plain(31),
      plain(32),
      plain(33),
      plain(34),
      plain(35),
      plain(36),
      plain(37),
      plain(38),
      plain(39),
      plain(40),
      plain(41),
      plain(42),
      plain(43),
      plain(44),
      plain(45),
      plain(46),
      plain(47),
      plain(48),
      plain(49),
      plain(50),
      plain(51),
      plain(52),
      plain(53),
      plain(54),
      plain(55),
      plain(56),
      plain(57),
      plain(58),
      plain(59),
      plain(60),
      plain(61),
      plain(62),
      plain(63),
      plain(64),
      plain(65),
      plain(66),
      plain(67),
      plain(68),
      plain(69),
      plain(70),
      plain(71),
      plain(72),
      plain(73),
      plain(74),
      plain(75),
      plain(76),
      plain(77),
      plain(78),
      plain(79),
      plain(80),
      plain(81),
      plain(82),
      plain(83),
      plain(84),
      plain(85),
      plain(86),
      plain(87),
      plain(88),
      plain(89),
      plain(90),
      plain(91),
      plain(92),
      plain(93),
      plain(94),
      plain(95),
      plain(96),
      plain(97),
      plain(98),
      plain(99),
      plain(100),
      plain(101),
      plain(102),
      plain(103),
      plain(104),
      plain(105),
      plain(106),
      plain(107),
      plain(108),
      plain(109),
      plain(110),
      plain(111),
      plain(112),
      plain(113),
      plain(114),
      plain(115),
      plain(116),
      plain(117),
      plain(118),
      plain(119),
      plain(120),
      plain(121),
      plain(122),
      plain(123),
      plain(124),
      plain(125),
      plain(126),
      plain(127),
      plain(128),
      plain(129),
      plain(130),
      plain(131),
      plain(132),
      plain(133),
      plain(134),
      plain(135),
      plain(136),
      plain(137),
      plain(138),
      plain(139),
      plain(140),
      plain(141),
      plain(142),
      plain(143),
      plain(144),
      plain(145),
      plain(146),
      plain(147),
      plain(148),
      plain(149),
      plain(150),
      (long_method(3) if depth == 2),
    ].length,
  )
  total += plain(61) + plain(total)
  total += plain(62) + plain(total)
  total += plain(63) + plain(total)
  total += plain(64) + plain(total)
  total += plain(65) + plain(total)
  total += plain(66) + plain(total)
  total += plain(67) + plain(total)
  total += plain(68) + plain(total)
  total += plain(69) + plain(total)
  total += plain(70) + plain(total)
  total += plain(71) + plain(total)
  total += plain(72) + plain(total)
  total += plain(73) + plain(total)
  total += plain(74) + plain(total)
  total += plain(75) + plain(total)
  total += plain(76) + plain(total)
  total += plain(77) + plain(total)
  total += plain(78) + plain(total)
  total += plain(79) + plain(total)
  total += plain(80) + plain(total)
  total += plain(81) + plain(total)
  total += plain(82) + plain(total)
  total += plain(83) + plain(total)
  total += plain(84) + plain(total)
  total += plain(85) + plain(total)
  total += plain(86) + plain(total)
  total += plain(87) + plain(total)
  total += plain(88) + plain(total)
  total += plain(89) + plain(total)
  total += plain(90) + plain(total)
  total += plain(91) + plain(total)
  total += plain(92) + plain(total)
  total += plain(93) + plain(total)
  total += plain(94) + plain(total)
  total += plain(95) + plain(total)
  total += plain(96) + plain(total)
  total += plain(97) + plain(total)
  total += plain(98) + plain(total)
  total += plain(99) + plain(total)
  total += plain(100) + plain(total)
  total += plain(101) + plain(total)
  total += plain(102) + plain(total)
  total += plain(103) + plain(total)
  total += plain(104) + plain(total)
  total += plain(105) + plain(total)
  total += plain(106) + plain(total)
  total += plain(107) + plain(total)
  total += plain(108) + plain(total)
  total += plain(109) + plain(total)
  total += plain(110) + plain(total)
  total += plain(111) + plain(total)
  total += plain(112) + plain(total)
  total += plain(113) + plain(total)
  total += plain(114) + plain(total)
  total += plain(115) + plain(total)
  total += plain(116) + plain(total)
  total += plain(117) + plain(total)
  total += plain(118) + plain(total)
  total += plain(119) + plain(total)
  total += plain(120) + plain(total)
  expect(caller_locations(0)); nil while true
end

long_method(0)

"""The tables that recipes draw from: names, things, places, units, words. No code but what reads them."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _pairs(text: str) -> tuple[tuple[str, str], ...]:
    """a/b c/d: two words each."""
    halves = [pair.split("/") for pair in text.split()]
    return tuple((first, second) for first, second in halves)


def _rows(text: str) -> tuple[tuple[str, str, str], ...]:
    """Lines of three fields."""
    fields = [line.split("|") for line in text.strip().split("\n")]
    return tuple((first, second, third) for first, second, third in fields)


NAMES = _words(
    "Anna Ben Carla David Emma Felix Grace Hugo Ida Jonas Kate Leo Mia Nora Oscar Paula Quinn Rosa Sam Tom Una Victor "
    "Wendy Xavier Yara Zoe Alice Bob Clara Daniel Eva Frank Greta Hans Irene Jack Laura Max Nina Otto Peter Ruth Simon "
    "Tina Ursula Vera Walter Lucy Mark Olga Paul Rita Sara Theo Amir Leila Kenji Yuki Mei Chen Raj Priya Omar Fatima "
    "Ivan Tara Luis Sofia Diego Elena Marco Giulia Lars Ingrid Noah Liam Olivia Henry Arthur Martha Edith Bruno"
)

ITEMS = _words(
    "apples pears plums oranges lemons bananas cherries eggs books pens pencils stamps coins marbles shells stones "
    "buttons cards balls toys cups plates spoons keys letters postcards flowers roses tulips candles cookies muffins "
    "tickets stickers beads nails screws bricks boxes bottles socks hats chairs lamps carrots onions potatoes tomatoes"
)

ANIMALS = _words(
    "fox cat dog bear mouse owl rabbit hedgehog otter squirrel badger frog turtle duck goose horse donkey goat sheep "
    "cow wolf deer beaver crow sparrow robin penguin seal whale dolphin snail spider bee ant butterfly elephant lion "
    "tiger monkey giraffe zebra camel parrot swan mole lizard"
)

THINGS = _words(
    "lantern key map ladder drum mirror basket kite boat clock bell coat umbrella candle book box stone rope shovel "
    "bucket whistle violin lamp letter coin crown ring hat bridge wheel bicycle telescope compass blanket pillow chair "
    "table teapot spoon"
)

COLOURS = _words("red blue green yellow black white brown grey orange purple pink golden silver")

WORDS = _words(
    "strawberry banana window garden kitchen morning evening butter pepper letter summer winter yellow purple bottle "
    "pencil rabbit turtle monkey dragon castle forest island desert mountain valley river ocean harbour village city "
    "street bridge station market school teacher doctor farmer sailor painter writer singer dancer baker driver hunter "
    "lantern candle mirror ladder basket pillow blanket carpet curtain cupboard table chair bench shelf drawer "
    "hammer shovel needle thread button pocket collar sleeve jacket trousers sweater slipper sandal helmet umbrella "
    "weather thunder lightning rainbow sunshine shadow evening midnight holiday birthday present surprise secret "
    "question answer sentence language dictionary library computer keyboard printer camera telephone picture music "
    "violin trumpet guitar piano whistle orchestra theatre cinema ticket journey luggage passport airport engine "
    "bicycle tractor trailer balloon rocket planet comet galaxy meteor gravity energy metal copper silver diamond "
    "carrot potato tomato onion garlic cabbage spinach pumpkin cherry lemon orange peach apple melon raspberry almond "
    "walnut hazelnut honey sugar vinegar mustard cinnamon chocolate biscuit pancake pudding sandwich noodle cheese "
    "elephant giraffe kangaroo penguin dolphin octopus lobster spider butterfly beetle mosquito hedgehog squirrel "
    "buffalo leopard panther hamster lizard crocodile parrot pigeon sparrow eagle falcon feather "
    "committee necessary accommodation successful parallel assessment mississippi bookkeeper happiness wilderness"
)

# What people try to have spelled.
TRIED = _words("hello world please thanks goodbye computer language model token server answer because beautiful")

CITIES = _words(
    "Paris London Berlin Rome Madrid Lisbon Vienna Prague Warsaw Dublin Oslo Stockholm Helsinki Athens Cairo Nairobi "
    "Lagos Tokyo Osaka Kyoto Seoul Beijing Shanghai Mumbai Delhi Sydney Melbourne Toronto Montreal Chicago Boston "
    "Seattle Denver Dallas Miami Lima Bogota Santiago Hamburg Munich Cologne Milan Naples Turin Porto Seville Valencia "
    "Lyon Nice Bordeaux Geneva Zurich Basel Krakow Bergen Malmo Turku Riga Vilnius Tallinn Sofia Belgrade Zagreb Split "
    "Istanbul Ankara Dubai Doha Tunis Dakar Accra Hanoi Manila Jakarta Bangkok Auckland Perth Glasgow Leeds York"
)

# country | capital | continent
# Places, also such as are told of, that are no countries.
NO_COUNTRIES = _words(
    "Texas California Florida Alaska Hawaii Virginia Bavaria Saxony Catalonia Sicily Tuscany Wales Siberia Tibet "
    "Quebec Ontario Provence Normandy Europe Africa Asia Antarctica Atlantis Narnia Wakanda Utopia Mordor Gondor "
    "Camelot Asgard Avalon Eldorado Lilliput Arcadia Mars Jupiter Venus"
)

COUNTRIES = _rows("""\
France|Paris|Europe
Germany|Berlin|Europe
Italy|Rome|Europe
Spain|Madrid|Europe
Portugal|Lisbon|Europe
Austria|Vienna|Europe
Belgium|Brussels|Europe
Ireland|Dublin|Europe
Norway|Oslo|Europe
Sweden|Stockholm|Europe
Finland|Helsinki|Europe
Denmark|Copenhagen|Europe
Iceland|Reykjavik|Europe
Poland|Warsaw|Europe
Hungary|Budapest|Europe
Romania|Bucharest|Europe
Bulgaria|Sofia|Europe
Greece|Athens|Europe
Croatia|Zagreb|Europe
Serbia|Belgrade|Europe
Slovenia|Ljubljana|Europe
Slovakia|Bratislava|Europe
Estonia|Tallinn|Europe
Latvia|Riga|Europe
Lithuania|Vilnius|Europe
Ukraine|Kyiv|Europe
Switzerland|Bern|Europe
Malta|Valletta|Europe
Albania|Tirana|Europe
Egypt|Cairo|Africa
Morocco|Rabat|Africa
Tunisia|Tunis|Africa
Algeria|Algiers|Africa
Kenya|Nairobi|Africa
Ghana|Accra|Africa
Senegal|Dakar|Africa
Ethiopia|Addis Ababa|Africa
Uganda|Kampala|Africa
Nigeria|Abuja|Africa
Zambia|Lusaka|Africa
Zimbabwe|Harare|Africa
Rwanda|Kigali|Africa
Madagascar|Antananarivo|Africa
Angola|Luanda|Africa
Japan|Tokyo|Asia
China|Beijing|Asia
India|New Delhi|Asia
South Korea|Seoul|Asia
Vietnam|Hanoi|Asia
Thailand|Bangkok|Asia
Indonesia|Jakarta|Asia
Malaysia|Kuala Lumpur|Asia
Nepal|Kathmandu|Asia
Mongolia|Ulaanbaatar|Asia
Pakistan|Islamabad|Asia
Bangladesh|Dhaka|Asia
Cambodia|Phnom Penh|Asia
Iran|Tehran|Asia
Iraq|Baghdad|Asia
Jordan|Amman|Asia
Lebanon|Beirut|Asia
Qatar|Doha|Asia
Oman|Muscat|Asia
Canada|Ottawa|North America
Mexico|Mexico City|North America
Cuba|Havana|North America
Jamaica|Kingston|North America
Panama|Panama City|North America
Costa Rica|San Jose|North America
Brazil|Brasilia|South America
Argentina|Buenos Aires|South America
Chile|Santiago|South America
Peru|Lima|South America
Colombia|Bogota|South America
Ecuador|Quito|South America
Uruguay|Montevideo|South America
Paraguay|Asuncion|South America
Venezuela|Caracas|South America
Australia|Canberra|Oceania
New Zealand|Wellington|Oceania
Fiji|Suva|Oceania
""")

OPPOSITES = _pairs(
    "hot/cold big/small long/short high/low fast/slow old/new young/old happy/sad light/dark heavy/light wet/dry "
    "full/empty open/closed rich/poor early/late strong/weak loud/quiet clean/dirty hard/soft deep/shallow "
    "wide/narrow thick/thin near/far up/down left/right in/out on/off yes/no day/night good/bad right/wrong "
    "true/false first/last begin/end buy/sell give/take push/pull win/lose love/hate remember/forget laugh/cry "
    "arrive/leave float/sink top/bottom inside/outside before/after always/never sweet/sour sharp/blunt safe/dangerous "
    "brave/cowardly polite/rude cheap/expensive simple/complicated smooth/rough tall/short"
)

PLURALS = _pairs(
    "child/children mouse/mice goose/geese foot/feet tooth/teeth man/men woman/women ox/oxen sheep/sheep fish/fish "
    "leaf/leaves knife/knives wolf/wolves half/halves loaf/loaves city/cities baby/babies berry/berries "
    "country/countries box/boxes bus/buses glass/glasses dish/dishes church/churches tomato/tomatoes "
    "potato/potatoes hero/heroes cat/cats dog/dogs book/books house/houses tree/trees river/rivers day/days key/keys"
)

PASTS = _pairs(
    "go/went see/saw eat/ate drink/drank run/ran swim/swam sing/sang write/wrote read/read speak/spoke take/took "
    "give/gave come/came find/found buy/bought think/thought bring/brought catch/caught teach/taught know/knew "
    "grow/grew fly/flew draw/drew begin/began break/broke choose/chose drive/drove fall/fell feel/felt hold/held "
    "keep/kept leave/left lose/lost make/made meet/met pay/paid say/said sell/sold send/sent sit/sat sleep/slept "
    "stand/stood tell/told win/won walk/walked play/played help/helped open/opened carry/carried stop/stopped"
)

# question | answer | the answer in one word or number
SMALL_FACTS = _rows("""\
What colour is the sky on a clear day?|The sky is blue on a clear day.|blue
What colour is grass?|Grass is green.|green
What colour is snow?|Snow is white.|white
What colour is a ripe banana?|A ripe banana is yellow.|yellow
What colour is coal?|Coal is black.|black
How many legs does a spider have?|A spider has eight legs.|eight
How many legs does an insect have?|An insect has six legs.|six
How many legs does a dog have?|A dog has four legs.|four
How many wheels does a bicycle have?|A bicycle has two wheels.|two
How many days are in a week?|There are seven days in a week.|seven
How many months are in a year?|There are twelve months in a year.|twelve
How many hours are in a day?|There are 24 hours in a day.|24
How many minutes are in an hour?|There are 60 minutes in an hour.|60
How many seconds are in a minute?|There are 60 seconds in a minute.|60
How many letters are in the English alphabet?|The English alphabet has 26 letters.|26
How many continents are there?|There are seven continents.|seven
What is the largest ocean?|The Pacific is the largest ocean.|Pacific
What is the largest planet of the solar system?|Jupiter is the largest planet of the solar system.|Jupiter
Which planet is closest to the sun?|Mercury is closest to the sun.|Mercury
Which planet do we live on?|We live on the Earth.|Earth
What do bees make?|Bees make honey.|honey
What do cows give?|Cows give milk.|milk
What is ice made of?|Ice is frozen water.|water
At what temperature does water boil?|Water boils at 100 degrees Celsius at sea level.|100
At what temperature does water freeze?|Water freezes at 0 degrees Celsius.|0
What does a dog say?|A dog barks: woof!|woof
What does a cat say?|A cat says meow.|meow
What does a cow say?|A cow says moo.|moo
What does a duck say?|A duck says quack.|quack
Where do fish live?|Fish live in water.|water
What is the opposite of north?|The opposite of north is south.|south
Where does the sun rise?|The sun rises in the east.|east
Where does the sun set?|The sun sets in the west.|west
What is a young cat called?|A young cat is called a kitten.|kitten
What is a young dog called?|A young dog is called a puppy.|puppy
What is a young cow called?|A young cow is called a calf.|calf
What is a young sheep called?|A young sheep is called a lamb.|lamb
What is the longest side of a right triangle called?|It is called the hypotenuse.|hypotenuse
How many sides does a triangle have?|A triangle has three sides.|three
How many sides does a square have?|A square has four sides.|four
How many sides does a hexagon have?|A hexagon has six sides.|six
What gas do we need to breathe?|We need oxygen.|oxygen
What is H2O?|H2O is water.|water
What is the nearest star to the Earth?|The sun is the nearest star to the Earth.|sun
What season comes after winter?|Spring comes after winter.|spring
What season comes after summer?|Autumn comes after summer.|autumn
What season comes after autumn?|Winter comes after autumn.|winter
What season comes after spring?|Summer comes after spring.|summer
How many seasons are there?|There are four seasons.|four
What colour is blood?|Blood is red.|red
What colour is a lemon?|A lemon is yellow.|yellow
What colour is a strawberry?|A ripe strawberry is red.|red
What colour is the sun?|The sun looks yellow.|yellow
What colour do blue and yellow make?|Blue and yellow make green.|green
What colour do red and yellow make?|Red and yellow make orange.|orange
What colour do red and white make?|Red and white make pink.|pink
How many legs does a cat have?|A cat has four legs.|four
How many legs does a bird have?|A bird has two legs.|two
How many wheels does a car have?|A car has four wheels.|four
How many fingers are on one hand?|There are five fingers on one hand.|five
How many planets are in the solar system?|There are eight planets in the solar system.|eight
How many centimetres are in a metre?|There are 100 centimetres in a metre.|100
How many years are in a century?|There are 100 years in a century.|100
What is the smallest planet of the solar system?|Mercury is the smallest planet of the solar system.|Mercury
What is the largest animal?|The blue whale is the largest animal.|whale
What is the tallest animal?|The giraffe is the tallest animal.|giraffe
What is the highest mountain?|Mount Everest is the highest mountain.|Everest
What does a sheep say?|A sheep says baa.|baa
What do sheep give?|Sheep give wool.|wool
What is the opposite of east?|The opposite of east is west.|west
What is a young goose called?|A young goose is called a gosling.|gosling
What is a young horse called?|A young horse is called a foal.|foal
What is glass made of?|Glass is made of sand.|sand
What is bread made of?|Bread is made of flour.|flour
""")

# from | to | factor | family of worked steps
UNITS = (
    ("kilometres", "metres", 1000),
    ("metres", "centimetres", 100),
    ("centimetres", "millimetres", 10),
    ("metres", "millimetres", 1000),
    ("kilograms", "grams", 1000),
    ("tonnes", "kilograms", 1000),
    ("litres", "millilitres", 1000),
    ("euros", "cents", 100),
    ("hours", "minutes", 60),
    ("minutes", "seconds", 60),
    ("days", "hours", 24),
    ("weeks", "days", 7),
    ("years", "months", 12),
    ("feet", "inches", 12),
    ("yards", "feet", 3),
    ("dozens", "pieces", 12),
)

# Of functions that are made up.
VERBS = _words(
    "archive rotate inspect label varnish transpose launch clean measure rename clone scan repair rent print cut "
    "polish wrap stamp freeze unlock pause resume merge tag weigh dry press sort_out water pack ship test "
    "order buy book reserve borrow send deliver move build mend water collect return sell hide draw mix boil bake cook "
    "sew dig plant pick sign approve reject publish close open start stop reset update cancel confirm track check "
    "count compare sort copy save load share hang paste translate record play show list get describe insure tune"
)

NOUNS = _words(
    "song parcel robot camera engine garden report ticket invoice picture sculpture vehicle machine sensor window "
    "door blanket document recording container shipment sample battery antenna fountain curtain record poster "
    "shelf tank"
)

# Of heroes in stories.
TRAITS = _words("small old young brave shy curious clever friendly lonely cheerful tired patient quiet hungry")

SYLLABLES = _words(
    "ba be bi bo bu da de di do du fa fe fi fo ga ge go ha he hi ho ja jo ka ke ki ko ku la le li lo lu ma me mi mo mu "
    "na ne ni no nu pa pe pi po pu ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo wa we wi wo ya yo za ze zo "
    "bra cle dri flo gra kle plo pri sta ste tri tra blu cro sho thi whe ing er en al or st nd sk mp rn th"
)

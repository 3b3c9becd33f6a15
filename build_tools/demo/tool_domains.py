"""The functions that tool dialogues offer: names, parameters, requests, results, each in several spellings.

Owns the table DOMAINS and how its values are drawn. Refuses to know messages and thoughts (tools.py).
A request names a parameter as {key}. Parameters that a request does not name are left out of the call, so they are
optional in the schema; those that every request names are required.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.calendar_time import DAYS, MONTHS
from demo.facts import CITIES, COLOURS, COUNTRIES, ITEMS, NAMES, THINGS, WORDS
from demo.sample import Draw, first_upper
from demo.words import made_up_word

Value = Callable[[Draw], Any]


def names(draw: Draw) -> str:
    return draw.one(NAMES) if draw.chance(0.7) else first_upper(made_up_word(draw))


def cities(draw: Draw) -> str:
    city = draw.one(CITIES) if draw.chance(0.8) else first_upper(made_up_word(draw))
    return f"{city}, {draw.one(COUNTRIES)[0]}" if draw.chance(0.1) else city


def titles(draw: Draw) -> str:
    """Two or three words, as a title or a subject."""
    return " ".join(draw.one(WORDS) if draw.chance(0.8) else made_up_word(draw) for _ in range(draw.number(1, 3)))


def big_titles(draw: Draw) -> str:
    return " ".join(first_upper(word) for word in titles(draw).split())


def codes(draw: Draw) -> str:
    letters = "".join(draw.one("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(draw.number(1, 3)))
    return f"{letters}{draw.one(('', '-'))}{draw.number(1, 9999)}"


def times(draw: Draw) -> str:
    return f"{draw.number(0, 23):02}:{draw.number(0, 59):02}"


def dates(draw: Draw) -> str:
    return f"{draw.number(2024, 2032)}-{draw.number(1, 12):02}-{draw.number(1, 28):02}"


def days(draw: Draw) -> str:
    return draw.one(DAYS) if draw.chance(0.6) else f"{draw.one(MONTHS)} {draw.number(1, 28)}"


def paths(draw: Draw) -> str:
    folders = "/".join(draw.one(WORDS) for _ in range(draw.number(0, 2)))
    file = f"{draw.one(WORDS)}.{draw.one(('txt', 'md', 'csv', 'json', 'log', 'py'))}"
    return f"{folders}/{file}" if folders else file


def folders(draw: Draw) -> str:
    return draw.one(("", "/")) + "/".join(draw.one(WORDS) for _ in range(draw.number(1, 3)))


def mails(draw: Draw) -> str:
    return f"{draw.one(NAMES).lower()}@{draw.one(('example.com', 'mail.test', made_up_word(draw) + '.org'))}"


def expressions(draw: Draw) -> str:
    parts = [str(draw.number(2, 999))]
    for _ in range(draw.number(1, 2)):
        parts += [draw.one(("+", "-", "*", "/")), str(draw.number(2, 999))]
    return " ".join(parts)


def whole(low: int, high: int) -> Value:
    return lambda draw: draw.number(low, high)


def decimals(draw: Draw) -> float:
    return draw.number(11, 999) / 10


def numbers(draw: Draw) -> float:
    """What a calculation may give."""
    whole_ = draw.number(0, draw.one((99, 999, 9_999, 99_999)))
    number = whole_ + draw.number(1, 9) / 10 if draw.chance(0.4) else whole_
    return -number if draw.chance(0.1) else number


@dataclass(frozen=True)
class Param:
    key: str  # in requests and results
    names: str  # spellings in schemas
    type: str
    description: str
    value: Value
    enum: tuple[str, ...] = ()


@dataclass(frozen=True)
class Domain:
    names: str  # function names
    description: str  # | between spellings
    params: tuple[Param, ...]
    requests: tuple[str, ...]
    result: tuple[tuple[str, Value], ...]  # keys of the tool's answer
    answer: str  # filled from parameters and result
    unseen: bool = False  # never in training: measures functions of an unknown subject


def _p(key: str, names_: str, type_: str, description: str, value: Value) -> Param:
    return Param(key, names_, type_, description, value)


def _choice(key: str, names_: str, description: str, *options: str) -> Param:
    return Param(key, names_, "string", description, lambda draw: draw.one(options), options)


_CITY = _p("city", "city location place town city_name", "string", "The city", cities)

DOMAINS: tuple[Domain, ...] = (
    Domain("get_weather weather current_weather getWeather weather_lookup fetch_weather check_weather",
           "Get the current weather of a city|Tells the weather in a place|Look up the weather",
           (_CITY, _choice("unit", "unit units scale", "The unit of temperature", "celsius", "fahrenheit")),
           ("What is the weather in {city}?", "How is the weather in {city} today?", "weather {city}",
            "Is it warm in {city}?",
            "What's the weather like in {city} today?", "Do I need an umbrella in {city}?",
             "Tell me the weather in {city} in {unit}.", "What is the temperature in {city} in {unit}?"),
           (("temperature", whole(-10, 38)), ("condition", lambda d: d.one(("sunny", "cloudy", "rainy", "windy",
            "foggy")))),
           "It is {condition} in {city}, with {temperature} degrees."),
    Domain("web_search search search_web searchWeb find_online internet_search",
           "Search the web|Find pages on the internet",
           (_p("query", "query q text search_term keywords", "string", "What to search for", titles),
            _p("limit", "limit n max_results count", "integer", "The number of results", whole(1, 20))),
           ("Search the web for {query}.", "Find pages about {query}.", "Look up {query} on the internet.",
            "Search for {query} and give me {limit} results.", "Please google {query}."),
           (("title", big_titles), ("url", lambda d: f"https://{made_up_word(d)}.example/{d.one(WORDS)}")),
           'I found "{title}" at {url}.'),
    Domain("calculator calculate compute evaluate_expression calc math",
           "Evaluate an arithmetic expression|Calculates the value of a formula",
           (_p("expression", "expression formula expr input", "string", "The expression", expressions),),
           ("Use the calculator for {expression}.", "Calculate {expression} with the tool.",
            "What is {expression}? Use your tool.",
            "Compute {expression} with the calculator."),
           (("value", numbers),), "The result is {value}."),
    Domain("convert_units unit_converter convertUnits convert_measure units",
           "Convert a value from one unit to another|Converts measures",
           (_p("amount", "value amount number quantity", "number", "The value to convert", whole(1, 900)),
            _choice("source", "from_unit from source_unit unit_from", "The unit of the value", "miles", "pounds",
             "gallons", "acres"),
            _choice("target", "to_unit to target_unit unit_to", "The unit of the result", "kilometers", "kilograms",
             "liters",
                    "hectares")),
           ("Convert {amount} {source} to {target}.", "How many {target} are {amount} {source}?",
            "{amount} {source} in {target}, please."),
           (("value", lambda d: abs(numbers(d))),), "{amount} {source} are {value} {target}."),
    Domain("read_file open_file readFile file_read get_file_contents cat_file",
           "Read a file|Returns the contents of a text file",
           (_p("path", "path file filename file_path", "string", "The path of the file", paths),),
           ("Read the file {path}.", "What is in {path}?", "Show me the contents of {path}.", "Open {path}."),
           (("content", titles),), "The file {path} contains: {content}"),
    Domain("list_files list_directory ls listFiles show_folder",
           "List the files of a folder|Shows what is in a directory",
           (_p("folder", "folder directory path dir", "string", "The folder", folders),),
           ("Which files are in {folder}?", "List the files in {folder}.", "Show the folder {folder}.",
            "What is in the directory {folder}?"),
           (("count", whole(2, 40)), ("newest", paths)),
            "There are {count} files in {folder}. The newest one is {newest}."),
    Domain("create_event add_event calendar_add createEvent schedule_meeting new_appointment",
           "Create a calendar event|Adds an appointment to the calendar",
           (_p("title", "title name subject summary", "string", "The title of the event", titles),
            _p("date", "date day on", "string", "The day", dates),
            _p("time", "time start start_time at", "string", "The time", times)),
           ('Create an event "{title}" on {date} at {time}.', "Add {title} to my calendar on {date} at {time}.",
            'Schedule "{title}" for {date}, {time}.'),
           (("id", codes),), "The event is in your calendar on {date} at {time}. Its number is {id}."),
    Domain("get_events list_events calendar_list getEvents show_calendar agenda",
           "List the events of a day|Shows the calendar",
           (_p("date", "date day when", "string", "The day", days),),
           ("What is in my calendar on {date}?", "Which appointments do I have on {date}?",
            "Show my events of {date}."),
           (("title", titles), ("time", times)), 'On {date} you have "{title}" at {time}.'),
    Domain("send_email send_mail sendEmail mail write_email email_send",
           "Send an e-mail|Sends a message by mail",
           (_p("to", "to recipient address receiver", "string", "The address", mails),
            _p("subject", "subject title", "string", "The subject", titles),
            _p("body", "body text message content", "string", "The text", titles)),
           ('Send an e-mail to {to} with the subject "{subject}" and the text "{body}".',
            'Mail {to}: subject "{subject}", text "{body}".'),
           (("status", lambda d: d.one(("sent", "queued"))),), "The e-mail to {to} is {status}."),
    Domain("set_timer start_timer timer setTimer countdown",
           "Start a timer|Sets a countdown",
           (_p("minutes", "minutes duration mins length", "integer", "Minutes", whole(1, 120)),
            _p("label", "label name title", "string", "What it is for", lambda d: d.one(WORDS))),
           ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes.",
            "Wake me in {minutes} minutes.",
            "Set a {minutes} minute timer called {label}."),
           (("ends_at", times),), "The timer runs. It ends at {ends_at}."),
    Domain("set_alarm alarm create_alarm setAlarm wake_up",
           "Set an alarm|Sets the alarm clock",
           (_p("time", "time at clock_time when", "string", "The time", times),),
           ("Set an alarm for {time}.", "Wake me at {time}.", "I want to get up at {time}. Set the alarm."),
           (("status", lambda d: "on"),), "The alarm is set for {time}."),
    Domain("translate translate_text translation translateText to_language",
           "Translate a text|Translates text into another language",
           (_p("text", "text source content phrase", "string", "The text", titles),
            _choice("language", "language target_language to lang", "The language", "French", "German", "Spanish",
             "Italian", "Polish")),
           ('Translate "{text}" into {language}.', 'What is "{text}" in {language}?',
            'How do you say "{text}" in {language}?'),
           (("translation", lambda d: " ".join(made_up_word(d) for _ in range(2))),),
            'In {language} it is "{translation}".'),
    Domain("convert_currency currency exchange exchange_rate convertCurrency",
           "Convert money from one currency to another|Currency conversion at today's rate",
           (_p("amount", "amount value sum", "number", "The amount", whole(1, 2000)),
            _choice("source", "from_currency from base source", "The currency of the amount", "USD", "EUR", "GBP"),
            _choice("target", "to_currency to target", "The currency wanted", "JPY", "CHF", "SEK")),
           ("Convert {amount} {source} to {target}.", "How much is {amount} {source} in {target}?",
            "Exchange {amount} {source} into {target}."),
           (("value", lambda d: abs(numbers(d))),), "{amount} {source} are {value} {target}."),
    Domain("stock_price get_stock_price quote getQuote share_price",
           "Get the price of a share|Looks up a stock",
           (_p("symbol", "symbol ticker stock code", "string", "The symbol",
               lambda d: "".join(d.one("ABCDEFGHIKLMNOPRSTUVX") for _ in range(d.number(3, 4)))),),
           ("What is the stock price of {symbol}?", "How is the share {symbol} doing?", "Price of {symbol}, please."),
           (("price", decimals), ("currency", lambda d: d.one(("USD", "EUR")))),
            "{symbol} is at {price} {currency}."),
    Domain("play_music play_song music_play playMusic start_song",
           "Play music|Plays a song",
           (_p("song", "song title track name", "string", "The song", big_titles),
            _p("artist", "artist band by", "string", "Who plays it", names)),
           ('Play "{song}".', 'Play "{song}" by {artist}.', 'I want to hear "{song}" by {artist}.',
            'Put on "{song}".'),
           (("status", lambda d: "playing"),), 'Now playing "{song}".'),
    Domain("set_light light_control switch_light setLight lamp",
           "Switch the light of a room|Controls the lights",
           (_choice("room", "room where place", "The room", "kitchen", "bathroom", "bedroom", "hall", "garage",
            "office"),
            _choice("state", "state action mode", "What to do", "on", "off")),
           ("Turn {state} the light in the {room}.", "Switch the {room} light {state}.",
            "Light {state} in the {room}, please."),
           (("status", lambda d: "done"),), "The light in the {room} is {state} now."),
    Domain("set_temperature thermostat heat_room setThermostat heating",
           "Set the temperature of a room|Controls the heating",
           (_p("degrees", "degrees temperature value target", "number", "Degrees Celsius", whole(15, 26)),
            _choice("room", "room zone where", "The room", "kitchen", "bathroom", "bedroom", "office", "attic")),
           ("Set the {room} to {degrees} degrees.", "Heat the {room} to {degrees} degrees.",
            "I want {degrees} degrees in the {room}."),
           (("now", whole(10, 20)),), "The {room} has {now} degrees now and will reach {degrees}."),
    Domain("add_to_list shopping_list add_item addItem list_add",
           "Add something to the shopping list|Puts an item on a list",
           (_p("item", "item product what name", "string", "What to add", lambda d: d.one(ITEMS)),
            _p("amount", "amount quantity count n", "integer", "How many", whole(2, 40))),
           ("Add {item} to my shopping list.", "Put {amount} {item} on the list.",
            "I need {amount} {item}. Add them to the list.",
            "Add {amount} {item} to the shopping list."),
           (("total", whole(1, 30)),), "I added the {item}. The list has {total} entries now."),
    Domain("dictionary define_word lookup_word getDefinition word_meaning",
           "Look up a word in the dictionary|Returns the meaning of a word",
           (_p("word", "word term entry", "string", "The word",
            lambda d: d.one(WORDS) if d.chance(0.5) else made_up_word(d)),),
           ('Look up "{word}" in the dictionary.', 'Find the word "{word}" in the dictionary.',
            'Ask the dictionary for "{word}".'),
           (("meaning", titles),), '"{word}" means: {meaning}.'),
    Domain("current_time get_time time_in getTime world_clock local_time",
           "Get the local time of a city|World clock",
           (_CITY,), ("What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city} now?"),
           (("time", times),), "In {city} it is {time}."),
    Domain("get_news news latest_news headlines getNews",
           "Get news about a topic|Fetches headlines",
           (_p("topic", "topic subject about category", "string", "The topic", lambda d: d.one(WORDS)),
            _p("limit", "limit count n max", "integer", "How many", whole(1, 10))),
           ("What is new about {topic}?", "Show me news about {topic}.", "Give me {limit} headlines on {topic}."),
           (("headline", big_titles),), 'The latest headline is "{headline}".'),
    Domain("find_restaurant restaurants search_restaurants findRestaurants places_to_eat",
           "Find restaurants in a city|Searches places to eat",
           (_CITY, _choice("cuisine", "cuisine kind food type", "The kind of food", "Italian", "Indian", "Greek",
            "Thai", "Mexican")),
           ("Find a restaurant in {city}.", "Where can I eat {cuisine} food in {city}?",
            "I am looking for {cuisine} food in {city}."),
           (("name", big_titles), ("rating", whole(1, 5))), "{name} in {city} has {rating} stars."),
    Domain("book_table reserve_table make_reservation bookTable",
           "Book a table at a restaurant|Reserves seats",
           (_p("restaurant", "restaurant name place", "string", "The restaurant", big_titles),
            _p("people", "people guests seats persons", "integer", "How many guests", whole(2, 12)),
            _p("time", "time at hour", "string", "The time", times)),
           ('Book a table for {people} at "{restaurant}" at {time}.',
            'Reserve a table at "{restaurant}" for {people} people at {time}.'),
           (("code", codes),), "Your table for {people} is booked at {time}. The code is {code}."),
    Domain("search_flights find_flight flights flightSearch get_flights",
           "Search flights between two cities|Finds flights",
           (_p("origin", "origin from departure from_city", "string", "Where it starts", cities),
            _p("destination", "destination to arrival to_city", "string", "Where it goes", cities),
            _p("date", "date day departure_date", "string", "The day", dates)),
           ("Find a flight from {origin} to {destination} on {date}.",
            "Flights from {origin} to {destination} on {date}?",
            "I want to fly from {origin} to {destination} on {date}."),
           (("flight", codes), ("price", whole(40, 900))),
            "Flight {flight} from {origin} to {destination} costs {price} euros."),
    Domain("create_note add_note note write_note saveNote",
           "Save a note|Writes a note down",
           (_p("text", "text note content body", "string", "The note", titles),),
           ('Write a note: "{text}".', "Note down: {text}", 'Save the note "{text}".'),
           (("id", codes),), "I saved the note. Its number is {id}."),
    Domain("delete_note remove_note deleteNote erase_note",
           "Delete a note|Removes a note for good",
           (_p("id", "id note_id number key", "string", "The note's number", codes),),
           ("Delete the note {id}.", "Remove note {id}, please.", "Throw away the note {id}."),
           (("deleted", lambda d: True),), "The note {id} is deleted."),
    Domain("find_contact lookup_contact contacts getContact phone_book",
           "Find a person in the address book|Looks up a contact",
           (_p("name", "name person who contact", "string", "The name", names),),
           ("What is the phone number of {name}?", "Find {name} in my contacts.", "How can I reach {name}?"),
           (("phone", lambda d: f"{d.number(100, 999)}-{d.number(1000, 9999)}"),),
            "The number of {name} is {phone}."),
    Domain("roll_dice dice throw_dice rollDice",
           "Roll dice|Throws dice and returns the sum",
           (_p("count", "count dice n number", "integer", "How many dice", whole(1, 9)),
            _p("sides", "sides faces", "integer", "Sides of each", lambda d: d.one((4, 6, 8, 10, 12, 20)))),
           ("Roll {count} dice with {sides} sides.", "Throw {count} dice, {sides} sides each."),
           (("sum", whole(1, 90)),), "The dice show {sum}."),
    Domain("remind_me set_reminder reminder create_reminder addReminder",
           "Set a reminder|Reminds the user of something",
           (_p("text", "text what message task", "string", "What to remember", titles),
            _p("time", "time at when", "string", "When", times)),
           ('Remind me of "{text}" at {time}.', 'Set a reminder "{text}" for {time}.',
            'At {time} remind me: "{text}".'),
           (("status", lambda d: "set"),), "I will remind you at {time}."),
    Domain("get_route route directions navigate findRoute",
           "Find the way between two places|Directions",
           (_p("start", "start from origin", "string", "Where to start", cities), _p("goal",
            "goal to destination end", "string", "Where to go", cities),
            _choice("mode", "mode by transport", "How to travel", "car", "train", "bus", "bike")),
           ("How do I get from {start} to {goal}?", "Show me the way from {start} to {goal} by {mode}.",
            "Route from {start} to {goal} by {mode}."),
           (("km", whole(3, 900)), ("minutes", whole(5, 600))),
            "It is {km} km from {start} to {goal} and takes {minutes} minutes."),
    Domain("country_info get_country countryInfo country_facts",
           "Facts about a country|Returns the population of a country",
           (_p("country", "country name nation", "string", "The country", lambda d: d.one(COUNTRIES)[0]),),
           ("How many people live in {country}?", "What is the population of {country}?", "Look up {country}."),
           (("population", whole(1, 200)),), "{country} has {population} million people."),
    Domain("get_date current_date today getDate what_day",
           "Get today's date|Returns the current date",
           (),
           ("What is today's date?", "Which day is it today?", "What date is it?", "Tell me the date."),
           (("date", dates),), "Today is {date}."),
    Domain("battery_status get_battery battery getBattery power_level",
           "Get the charge of the battery|Returns how full the battery is",
           (),
           ("How full is the battery?", "Do I have to charge the battery?", "Show the battery level."),
           (("percent", whole(1, 100)),), "The battery is at {percent} percent."),
    Domain("my_location get_location where_am_i getPosition gps",
           "Get the user's location|Returns where the device is",
           (),
           ("Where am I?", "Which city am I in?", "What is my location?", "Find out where I am."),
           (("city", cities),), "You are in {city}."),
    # Never trained on: what the model makes of functions from an unknown subject.
    Domain("movie_info get_movie film_details movieInfo", "Details of a movie|Information about a film",
           (_p("title", "title movie film", "string", "The movie", big_titles),),
           ('Tell me about the movie "{title}".', 'Who made the film "{title}"?'),
           (("year", whole(1930, 2024)), ("director", names)), '"{title}" is from {year}, by {director}.', True),
    Domain("find_parking parking parkingSearch nearest_parking", "Find parking in a city|Shows free parking",
           (_CITY, _p("hours", "hours duration stay", "integer", "How long", whole(1, 12))),
           ("Find parking in {city} for {hours} hours.", "I need a parking space in {city}."),
           (("street", big_titles), ("free", whole(1, 300))), "There are {free} free places at {street}.", True),
    Domain("paint_wall order_paint buyPaint paint_shop", "Order paint for a wall|Buys paint",
           (_p("colour", "colour color shade", "string", "The colour", lambda d: d.one(COLOURS)),
            _p("litres", "litres volume amount", "number", "How much", whole(1, 40))),
           ("Order {litres} litres of {colour} paint.", "Buy {colour} paint, {litres} litres."),
           (("order", codes),), "The paint is ordered. The number is {order}.", True),
    Domain("locate_item find_thing where_is findObject", "Find a thing at home|Locates an object",
           (_p("thing", "thing object item", "string", "What is missing", lambda d: d.one(THINGS)),),
           ("Where is my {thing}?", "Find my {thing}, please."),
           (("place", lambda d: d.one(WORDS)),), "The {thing} is near the {place}.", True),
)  # fmt: skip
